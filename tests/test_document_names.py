"""Every call that a document names in code formatting exists: `producer.send(...)`, `once(...)`."""

import ast
import builtins
import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest
from tests.documents import DOCUMENTS, ROOT, name_of, snippets

PACKAGES = ("lanemq", "lanemq.spark", "lanemq.testing", "lanemq.effects", "lanemq.pipelines", "lanemq.errors")
FOR_DEVELOPERS = ("decisions", "developers", "architecture.md", "rocketmq-order.md", "CONTRIBUTING.md", "RESULTS.md")
"""They name what is inside."""
FOREIGN = {
    **dict.fromkeys(("DeltaTable", "delta_scan", "parquet", "addListener", "where"), "Spark, Delta, DuckDB"),
    **dict.fromkeys(("char", "varchar", "numeric", "decimal", "timestamptz", "day", "cast", "try_cast"), "SQL"),
    **dict.fromkeys(("UUID", "datetime", "run_in_executor"), "Python"),
    **dict.fromkeys(("model_dump", "model_dump_json", "patch_all"), "Pydantic, gevent"),
    **dict.fromkeys(("setKeys", "setClientRebalance"), "RocketMQ"),
    "request": "a module of another program",
    "SystemClock": "the default of an option",
}
"""Names of other programs, each with its owner."""


@functools.cache
def public_names() -> frozenset[str]:
    """Public names, their attributes and the parameters of their calls, with those of builtins."""
    found = {name for kind in (str, bytes, dict, list, set, int, float, Exception) for name in dir(kind)}
    found |= {*dir(builtins)}
    for package in map(importlib.import_module, PACKAGES):
        for name in (each for each in dir(package) if not each.startswith("_")):
            thing = getattr(package, name)
            found |= {name, *parameters(thing)}
            if inspect.isclass(thing):
                found |= {*dir(thing)}
                found |= {each for base in thing.__mro__ for each in getattr(base, "__annotations__", ())}
    return frozenset(found)


def parameters(thing: object) -> set[str]:
    try:
        return {*inspect.signature(thing).parameters} if callable(thing) else set()
    except ValueError:  # a builtin
        return set()


@functools.cache
def shown_names() -> dict[Path, frozenset[str]]:
    """What the programs of each page define and use: mypy checks them."""
    found: dict[Path, set[str]] = {}
    for snippet in snippets("python"):
        for node in ast.walk(ast.parse(snippet.code)):
            for field in ("id", "attr", "name"):
                if isinstance(value := getattr(node, field, None), str):
                    found.setdefault(snippet.document, set()).add(value)
    return {path: frozenset(names) for path, names in found.items()}


def unknown_calls(text: str, shown: frozenset[str] = frozenset()) -> list[str]:
    """The calls in code formatting whose last name nothing has."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    calls = [
        call
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
        for call in re.findall(r"(?<![\w.])((?:\w+\.)*[A-Za-z_]\w*)\(", code)
    ]
    known = public_names() | shown | FOREIGN.keys()
    return [call for call in calls if call.rpartition(".")[2] not in known]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_call_in_code_formatting_exists(path: Path) -> None:
    if any(part in FOR_DEVELOPERS for part in path.relative_to(ROOT).parts) or path.name == "CHANGELOG.md":
        pytest.skip("for developers, or about the past")
    assert unknown_calls(path.read_text("utf-8"), shown_names().get(path, frozenset())) == []


def test_a_call_that_does_not_exist_is_found() -> None:
    assert unknown_calls("Use `lanes.decided()` or `lanes.requested(key)`.") == ["lanes.decided"]


def test_names_of_other_programs_are_used_somewhere() -> None:
    text = "".join(path.read_text("utf-8") for path in DOCUMENTS)
    assert [name for name in FOREIGN if f"{name}(" not in text] == []
