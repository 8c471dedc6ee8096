"""Code in the documents: where it stands, and what its author says about it.

A fence of Python is checked by mypy and run, unless comments in front of it say otherwise. A reader does not see them:

    <!-- with: from lanemq import Producer -->   lines of code in front of the snippet, for fragments
    <!-- until: order-42 shipped -->             run until this text is printed, then stopped with SIGTERM
    <!-- not run: needs Spark -->                only type-checked
    <!-- prints -->                              in front of a text fence: what the snippet before it prints
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / folder / name for folder, name in (("examples", "README.md"), ("interop", "README.md"))),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
)

_FENCE = re.compile(
    r"(?P<comments>(?:^<!--.*?-->\n\n?)*)^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"<!-- (with|until|not run|prints):? ?(.*?) ?-->", re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One fence of a document."""

    document: Path
    line: int
    language: str
    code: str
    """With the hidden lines in front of it."""
    until: str | None
    not_run: str | None
    prints: str | None

    @property
    def name(self) -> str:
        """Document and line: `docs/start.md:40`."""
        return f"{name_of(self.document)}:{self.line}"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def snippets(language: str, documents: list[Path] = DOCUMENTS) -> list[Snippet]:
    """Every fence of `language`, in the order of the documents."""
    return [each for path in documents for each in in_text(path, path.read_text("utf-8")) if each.language == language]


def in_text(document: Path, text: str) -> Iterator[Snippet]:
    found = list(_FENCE.finditer(text))
    for fence, following in zip_longest(found, found[1:]):
        said = dict(_COMMENT.findall(fence["comments"]))
        prints = None
        if following is not None and "prints" in dict(_COMMENT.findall(following["comments"])):
            prints = following["code"]
        hidden = f"{said['with'].strip()}\n" if "with" in said else ""
        line = text.count("\n", 0, fence.start("code"))
        yield Snippet(
            document, line, fence["language"], hidden + fence["code"], said.get("until"), said.get("not run"), prints
        )
