"""The shape of the project: layers, public names, the error tree, and the pages that list them."""

import ast
import functools
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.documents import DOCUMENTS

import lanemq
from lanemq.checker.verdict import INVARIANTS
from lanemq.client.consumer.turns.handler import HandlerVerdict
from lanemq.model import errors
from lanemq.model.errors import LaneError
from lanemq.wire import lane_fields

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "lanemq"
DOCS = ROOT / "docs"
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".java", ".xml", ".ini", ".json", ""}
FOLDERS = ("src", "tests", "docs", "scripts", "examples", "benchmarks", "interop", ".ci")


def texts() -> Iterator[Path]:
    """Every text file of the repository."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                yield path
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"))


def section(text: str, title: str) -> str:
    """A section of a Markdown text, from its heading to the next one of the same or a higher level."""
    level = title.split(" ", 1)[0]
    found = re.search(rf"^{re.escape(title)}.*?$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title!r}"
    return found[1]


def test_the_layers_on_the_architecture_page_are_those_of_the_import_contract() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    there = {*PACKAGES, *(path.stem for path in SOURCE.glob("*.py"))}
    layers = [layer for layer in layers if not there.isdisjoint(layer.split(" | "))]
    picture = section((DOCS / "architecture.md").read_text("utf-8"), "## Layers").split("```")[1]
    drawn = [re.split(r"\s{2,}", line.strip())[0].replace("│", "|") for line in picture.strip().splitlines()]
    assert drawn == layers


SAME_POLICY = {"DeadLetter", "Park"}
"""Policies of consumers and of pipelines: what happens to a key that keeps failing."""


def test_public_class_names_are_unique_in_the_package() -> None:
    modules: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, set()).add(path.relative_to(SOURCE).as_posix())
    repeated = {name: found for name, found in modules.items() if len(found) > 1}
    assert repeated.keys() == SAME_POLICY, repeated


# public names and errors

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
"""Whether the extra `lanemq[spark]` is installed."""


@functools.cache
def all_documents() -> str:
    return "\n".join(path.read_text("utf-8") for path in DOCUMENTS)


@pytest.mark.parametrize("name", lanemq.__all__)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    assert hasattr(lanemq, name)
    assert re.search(rf"\b{name}\b", all_documents())


def test_type_checkers_see_the_same_public_names_as_a_running_program() -> None:
    """The names are written twice, because a running program imports each one at its first use."""
    for package in (lanemq, *([importlib.import_module("lanemq.pipelines")] if HAS_SPARK else [])):
        tree = ast.parse(Path(package.__file__ or "").read_text("utf-8"))
        (block,) = [node for node in tree.body if isinstance(node, ast.If)]
        typed = {
            name.name: each.module for each in block.body if isinstance(each, ast.ImportFrom) for name in each.names
        }
        assert package.__all__ == sorted(typed)
        for name, module in typed.items():
            assert getattr(package, name) is getattr(importlib.import_module(module or ""), name), name


def test_a_name_that_is_not_public_cannot_be_imported_from_lanemq() -> None:
    with pytest.raises(AttributeError, match="ConsumerEngine"):
        lanemq.ConsumerEngine  # noqa: B018
    assert set(lanemq.__all__) <= set(dir(lanemq))


@pytest.mark.parametrize("module", ["lanemq", "lanemq.cli.main"])
def test_an_import_loads_nothing_heavy(module: str) -> None:
    """`lanemq --version` and `import lanemq` should answer immediately."""
    heavy = {"lanemq.client", "lanemq.broker", "lanemq.log", "lanemq.net", "asyncio", "sqlite3", "rich"}
    code = f"import sys, {module}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy & set(out.stdout.split()) == set()


def own_exceptions() -> Iterator[type[BaseException]]:
    for found in pkgutil.walk_packages([str(SOURCE)], "lanemq."):
        if found.name.endswith("__main__") or (found.name.startswith("lanemq.spark") and not HAS_SPARK):
            continue
        for value in vars(importlib.import_module(found.name)).values():
            if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == found.name:
                yield value


NEVER_LEAVE = {"UnreadableHeader", "_TooShort", "NoHandler", "StagingOutdated", "CallFailed", "CallRefused"}
"""Not raised to a caller: two are turned into errors of the tree by `wire.command`, workers send a message without a
handler back, the PostgreSQL sink copies a batch again, and a gRPC front answers a call with a status."""


def test_every_exception_class_is_a_lane_error() -> None:
    """`except LaneError` catches everything. Verdicts are raised by users; click handles its own exceptions."""
    allowed = (LaneError, HandlerVerdict, click.ClickException)
    others = {each.__name__ for each in own_exceptions() if not issubclass(each, allowed)}
    assert others == NEVER_LEAVE


def test_every_error_can_be_imported_from_lanemq_errors() -> None:
    public = importlib.import_module("lanemq.errors")
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, LaneError)}
    assert set(public.__all__) == classes
    assert all(getattr(public, name) is getattr(errors, name) for name in classes)


def test_the_docstring_of_the_errors_draws_the_whole_tree() -> None:
    drawn = set(re.findall(r"[A-Z][A-Za-z]+", errors.__doc__ or ""))
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, LaneError)}
    assert classes - drawn == set()
    assert "…" not in (errors.__doc__ or "")


def test_the_reference_says_of_every_error_whether_it_is_retriable() -> None:
    public = importlib.import_module("lanemq.errors")
    page = (DOCS / "reference" / "errors.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    listed = {name: row[-1] == "yes" for row in rows for name in re.findall(r"`(\w+)`", " ".join(row[:-1]))}
    expected = {name: getattr(public, name).retriable for name in public.__all__ if name != "LaneError"}
    assert {name: retriable for name, retriable in listed.items() if name in expected} == expected


RAISED_FREELY = {"StopIteration", "StopAsyncIteration", "NotImplementedError", "AssertionError"}
"""Python's own protocol for iterators and abstract methods."""


@pytest.mark.parametrize("package", ["client", "net"])
def test_client_and_net_raise_only_lane_errors(package: str) -> None:
    foreign = {
        (path.name, node.exc.func.id)
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        if node.exc.func.id[0].isupper() and node.exc.func.id not in RAISED_FREELY
        if not issubclass(getattr(errors, node.exc.func.id, object), LaneError)
    }
    assert not foreign


# pages that list something


def test_every_promise_names_its_test() -> None:
    text = (DOCS / "reference" / "promises.md").read_text("utf-8")
    promises = re.findall(r"^## (\d+)\. (.+)$", text, re.MULTILINE)
    assert [number for number, _ in promises] == [str(number) for number in range(1, 14)]
    for part in re.split(r"^## (?=\d)", text, flags=re.MULTILINE)[1:]:
        named = re.findall(r"`(tests/promises/\w+\.py)`", part)
        assert named
        assert all((ROOT / path).is_file() for path in named), named


def test_the_page_of_promises_has_those_of_the_details() -> None:
    short = (DOCS / "guarantees.md").read_text("utf-8")
    details = (DOCS / "reference" / "promises.md").read_text("utf-8")
    stated = re.findall(r"^(\d+)\. \[(.+?)\.\]\(reference/promises.md#", short, re.MULTILINE)
    assert stated == re.findall(r"^## (\d+)\. (.+)$", details, re.MULTILINE)


def test_every_addition_to_the_protocol_is_documented() -> None:
    documented = (DOCS / "developers" / "protocol.md").read_text("utf-8")
    added = [value for name, value in vars(lane_fields).items() if name.startswith("LANE_")]
    assert added
    assert [value for value in added if f"`{value}`" not in documented] == []


def test_the_reference_lists_every_invariant_of_the_checker() -> None:
    listed = re.findall(r"^\| ([A-Z]\d) \|", (DOCS / "reference" / "history.md").read_text("utf-8"), re.MULTILINE)
    assert listed == list(INVARIANTS)


def test_decisions_are_numbered_complete_and_listed() -> None:
    paths = sorted((DOCS / "decisions").glob("0*.md"))
    listed = re.findall(r"\]\((0[^)]+)\)", (DOCS / "decisions" / "README.md").read_text("utf-8"))
    assert listed == [path.name for path in paths]
    assert [int(path.name[:4]) for path in paths] == list(range(1, len(paths) + 1)), "without a gap"
    for path in paths:
        titles = re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE)
        assert titles == ["Context", "Choice", "What we gave up", "When to look again"], path.name


TO_DO = re.compile("TO" + "DO|FIX" + "ME")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/\w|C:\\\\Users")
REGISTRY = re.compile(
    "|".join(
        [
            "py" + "pi[.]",
            "python" + "hosted",
            "npm" + "js[.]",
            "maven[.]" + "org",
            "repo[.]" + "maven",
            "arti" + "factory",
            "j" + "frog",
        ]
    )
)
"""Hosts of package registries: where packages come from is a setting of the machine, not of the project."""


@pytest.mark.parametrize(
    "pattern", [TO_DO, MACHINE_PATH, REGISTRY], ids=["to do", "path of one machine", "package registry"]
)
def test_no_file_contains(pattern: re.Pattern[str]) -> None:
    found = [path.relative_to(ROOT).as_posix() for path in texts() if pattern.search(path.read_text("utf-8"))]
    assert [path for path in found if path != "tests/test_shape.py"] == []
