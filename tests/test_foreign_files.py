"""What is in this repository was written for it: no minified files, and no copies of other projects' files."""

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
OWN = {PurePosixPath("LICENSE"), PurePosixPath("tests/test_foreign_files.py")}
"""The project's own licence, and this file, which has the words that it looks for."""
MADE_HERE = {".png": ("docs/images", "benchmarks/images")}
"""Where files that are not text may be: screenshots and plots, which our own programs write."""
COPIES = {"vendor", "vendored", "third_party", "node_modules"}
PAGES = {".js", ".css", ".html", ".svg"}
MAX_LINE = 800
"""Characters of a line in a file that a browser gets. Our longest is a template's, with 735."""
MAX_MEAN_LINE = 250
"""The mean of all lines of such a file; for those that a minifier has cut into pieces. Drawings may be one line."""
LICENCES = re.compile(
    rb"copyright (?:\(c\)|\xc2\xa9|\d{4})|@licen[cs]e|@preserve|spdx-license-identifier|permission is hereby granted|"
    rb"licensed under the|all rights reserved",
    re.IGNORECASE,
)


def foreign(path: PurePosixPath, data: bytes) -> str | None:
    """Why a file seems to be a copy of another project's, or made from one; None if it does not."""
    if ".min." in path.name or COPIES & set(path.parts):
        return "its name says that it is a copy"
    if re.fullmatch(r"(licen[cs]e|copying|notice)([-_.](?!py$).*)?", path.name, re.IGNORECASE) and path not in OWN:
        return "it is a licence, and the project has its own only"
    if path.suffix in MADE_HERE:
        return None if str(path.parent) in MADE_HERE[path.suffix] else "such files are in other folders"
    if b"\0" in data:
        return "it is not text"
    if path not in OWN and (found := LICENCES.search(data)):
        return f"it says {found[0].decode('utf-8', 'replace')!r}"
    return _minified(path, data.decode("utf-8", "replace")) if path.suffix in PAGES else None


def _minified(path: PurePosixPath, text: str) -> str | None:
    lines = [len(line) for line in text.splitlines() if line.strip()]
    if max(lines, default=0) > MAX_LINE:
        return f"a line has {max(lines)} characters"
    if path.suffix != ".svg" and lines and sum(lines) / len(lines) > MAX_MEAN_LINE:
        return f"its lines have {sum(lines) / len(lines):.0f} characters on average"
    return None


def _files() -> list[PurePosixPath]:
    """All files that are in the repository, or would be with the next commit."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this folder is not a checkout, so it may have other files")
    return [PurePosixPath(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_of_the_repository_is_foreign() -> None:
    files = _files()
    assert len(files) > 500
    found = {str(path): why for path in files if (why := foreign(path, (ROOT / path).read_bytes())) is not None}
    assert found == {}


SCRIPT = "function shown(page){return page.hidden?null:page}" * 40
PLANTED = {
    "a name": ("src/lanemq/console/assets/plots.min.js", b"let a = 1;\n"),
    "a folder": ("src/lanemq/vendor/plots.py", b"a = 1\n"),
    "one line": ("src/lanemq/console/assets/plots.js", SCRIPT.encode()),
    "lines cut to a width": ("src/lanemq/console/assets/plots.css", "\n".join([SCRIPT[:500]] * 20).encode()),
    "a header": ("src/lanemq/console/assets/plots.js", b"/*! Plots 1.2 | Copyright (c) 2020 Somebody */\n"),
    "a tag": ("src/lanemq/plots.py", b"# SPDX-License-Identifier: MIT\n"),
    "its licence": ("src/lanemq/console/assets/LICENSE-plots.txt", b"You may use it.\n"),
    "a font": ("src/lanemq/console/assets/sans.woff2", b"wOF2\0\1\0\0"),
    "an archive": ("tests/log/folders/data.tar.xz", b"\xfd7zXZ\0"),
    "a picture": ("src/lanemq/console/assets/logo.png", b"\x89PNG\r\n\x1a\n\0"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_file_is_found(name: str) -> None:
    """Control: what the test above looks for, it finds."""
    path, data = PLANTED[name]
    assert foreign(PurePosixPath(path), data) is not None


def test_an_ordinary_file_is_not_found() -> None:
    """Control: the planted ones are not found just because of their folder."""
    assert foreign(PurePosixPath("src/lanemq/console/assets/plots.js"), b'"use strict";\n// Draws a plot.\n') is None
    assert foreign(PurePosixPath("docs/images/console-home.png"), b"\x89PNG\r\n\x1a\n\0") is None
