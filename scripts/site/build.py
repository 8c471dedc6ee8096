"""`make docs`: builds the site from `docs/`, without the network, into the folder that the console serves under /docs.

Three steps. *Collect*: the documents and the pages made from the code go into one folder, and links that leave it are
turned. *Build*: Sphinx makes HTML and stops at every warning, such as a link to nowhere. *Seal*: what stands inside
the pages as script or style moves into files, since the console's policy allows no inline ones, and pages that load
anything from elsewhere are refused.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from scripts.site.pages import api_pages, commands_page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SITE = ROOT / "src" / "lanemq" / "console" / "documents"
WORK = ROOT / "var" / "site"
PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
    "benchmarks/RESULTS.md": "measurements.md",
}
"""Documents outside `docs/`, and their names on the site."""
FILES = ("examples", "deploy")
"""Folders whose files can be opened from the site."""
ATTRIBUTES = "_static/attributes.css"
"""What stood in style attributes."""
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)]*)?(\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def main() -> None:
    source, html = WORK / "source", WORK / "html"
    if update(source, collect()):  # Sphinx would leave the pages of a document that is gone
        shutil.rmtree(WORK / "cache", ignore_errors=True)
        shutil.rmtree(html, ignore_errors=True)
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--builder", "html"]
    folders = ["--conf-dir", HERE, "--doctree-dir", WORK / "cache", source, html]
    if subprocess.run([*sphinx, *map(str, folders)], check=False).returncode:
        for half_built in (html, WORK / "cache"):
            shutil.rmtree(half_built, ignore_errors=True)
        sys.exit("docs: the site was not built; the lines above say what to correct")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(html, SITE, ignore=shutil.ignore_patterns(".buildinfo*", "objects.inv"))
    seal(SITE)
    files = [path for path in SITE.rglob("*") if path.is_file()]
    pages, size = len([*SITE.rglob("*.html")]), sum(path.stat().st_size for path in files)
    print(f"docs: {pages} pages, {size / 1e6:.1f} MB; `lanemq console` serves them under /docs")


# collecting


def collect() -> dict[Path, bytes]:
    """Every file of the site before Sphinx reads it, by its path."""
    found: dict[Path, bytes] = {}
    for path in (ROOT / "docs").rglob("*.*"):
        found[path.relative_to(ROOT / "docs")] = path.read_bytes()
    for folder in FILES:
        for path in (ROOT / folder).glob("*.*"):
            if path.suffix != ".md":
                found[opened(path)] = path.read_bytes()
    for path in (ROOT / "benchmarks" / "images").glob("*.*"):
        found[Path("images") / path.name] = path.read_bytes()  # as seen from the page of the measurements
    found |= {Path(new): (ROOT / old).read_bytes() for old, new in PAGES.items()}
    origin = {Path(new): ROOT / old for old, new in PAGES.items()}
    for target in [path for path in found if path.suffix == ".md"]:
        page = origin.get(target, ROOT / "docs" / target)
        found[target] = turn_links(found[target].decode(), page, target).encode()
    for name, text in (*api_pages(), ("commands.md", commands_page())):
        found[Path("reference") / name] = text.encode()
    add_order(found)
    return found


def opened(path: Path) -> Path:
    """Where a file of the repository is on the site: as text, which browsers show, and which no tool takes for code."""
    return Path("files") / f"{path.relative_to(ROOT)}.txt"


def update(folder: Path, files: dict[Path, bytes]) -> bool:
    """Makes the folder hold these files, and returns whether others had to go.

    What is unchanged is left alone, so that Sphinx does not read it again.
    """
    gone = [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) not in files]
    for old in gone:
        old.unlink()
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != content:
            target.write_bytes(content)
    return bool(gone)


def turn_links(text: str, page: Path, target: Path) -> str:
    """The text with links that lead to the same things on the site, at `target`, as the old ones did from `page`."""
    places = {ROOT / old: Path(new) for old, new in PAGES.items()}

    def turn(match: re.Match[str]) -> str:
        wanted = (page.parent / match[2]).resolve()
        if wanted.is_dir():
            wanted /= "README.md"
        if wanted in places:
            found = places[wanted]
        elif wanted.is_relative_to(ROOT / "docs"):
            found = wanted.relative_to(ROOT / "docs")
        elif wanted.is_relative_to(ROOT) and wanted.relative_to(ROOT).parts[0] in FILES:
            found = opened(wanted)
        else:
            return match[0]  # Sphinx refuses it
        found = Path("index.md") if found == Path("README.md") else found
        return f"{match[1]}{os.path.relpath(found, target.parent)}{match[3] or ''}{match[4]}"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(turn, part) for part in parts)


def add_order(files: dict[Path, bytes]) -> None:
    """Adds the first page, and to it and to two others the order of the pages below them, for the side bar."""
    parts = {
        "Begin": ["start", "concepts", "when-not", "guarantees"],
        "Guides": ["guides/README", *listed(files, "guides")],
        "Reference": ["reference/README", "reference/api", "reference/commands", *listed(files, "reference")],
        "Project": ["readme", "examples", "benchmarks", "measurements", "changelog"],
        "Working on LaneMQ": [
            "contributing",
            "developers/README",
            *listed(files, "developers"),
        ],
    }
    trees = "".join(tree(dict.fromkeys(pages), caption) for caption, pages in parts.items())
    files[Path("index.md")] = files.pop(Path("README.md")) + trees.encode()
    for page, folder, below in (("reference/api.md", "api", "*.md"), ("decisions/README.md", ".", "0*.md")):
        pages = sorted(str(path.relative_to(Path(page).parent).with_suffix("")) for path in files
                       if path.parent == Path(page).parent / folder and path.match(below))  # fmt: skip
        files[Path(page)] += tree(pages).encode()


def tree(pages: Iterable[str], caption: str = "") -> str:
    return (
        "\n```{toctree}\n:hidden:\n"
        + (f":caption: {caption}\n" if caption else "")
        + "\n"
        + "\n".join(pages)
        + "\n```\n"
    )


def listed(files: dict[Path, bytes], folder: str) -> list[str]:
    """The pages that the overview of a folder lists in its table, in that order."""
    names = re.findall(r"^\| \[[^]]+\]\(([^)#]+)\.md\)", files[Path(folder) / "README.md"].decode(), re.MULTILINE)
    return [os.path.normpath(f"{folder}/{name}") for name in names]


# sealing


def seal(html: Path) -> None:
    """Moves inline scripts and styles of all pages into files, and refuses pages that load from other hosts."""
    for page in html.rglob("*.html"):
        text = page.read_text("utf-8")
        up = "../" * len(page.relative_to(html).parts[:-1])

        def script(match: re.Match[str], up: str = up) -> str:
            return f'<script src="{up}{keep(html, match[1], "js")}"></script>' if match[1].strip() else ""

        def style(match: re.Match[str], up: str = up) -> str:
            return f'<link rel="stylesheet" href="{up}{keep(html, match[1], "css")}">'

        text = re.sub(r"<script>(.*?)</script>", script, text, flags=re.DOTALL)
        text = re.sub(r"<style[^>]*>(.*?)</style>", style, text, flags=re.DOTALL)
        text = re.sub(r' style="([^"]*)"', lambda match: f' data-style="{named(html, match[1])}"', text)
        text = text.replace("</head>", f'<link rel="stylesheet" href="{up}{ATTRIBUTES}"></head>', 1)
        page.write_text(text, "utf-8")
        if foreign := re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", text):
            sys.exit(f"docs: {page.relative_to(html)} loads from another host: {foreign[0]}")


def named(html: Path, style: str) -> str:
    """Writes a rule for the value of a style attribute, and returns the name by which elements refer to it."""
    name = hashlib.sha256(style.encode()).hexdigest()[:8]
    rules, line = html / ATTRIBUTES, f'[data-style="{name}"] {{ {style} }}\n'
    written = rules.read_text("utf-8") if rules.exists() else ""
    if line not in written:
        rules.write_text(written + line, "utf-8")
    return name


def keep(html: Path, text: str, kind: str) -> str:
    name = f"_static/inline-{hashlib.sha256(text.encode()).hexdigest()[:8]}.{kind}"
    (html / name).write_text(text, "utf-8")
    return name


if __name__ == "__main__":
    main()
