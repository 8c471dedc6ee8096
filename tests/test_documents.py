"""What the documents show is true: snippets type-check and run, commands parse, files load, names and links exist."""

import ast
import importlib
import inspect
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.documents import DOCUMENTS, ROOT, Snippet, in_text, name_of, snippets

from lanemq import Admin
from lanemq.cli.main import main
from lanemq.testing.embedded import EmbeddedBroker

ADDRESS = "localhost:9876"
SECONDS = 60
"""After this time a snippet that neither ends nor prints what it should is killed."""
PYTHON = snippets("python")
RUN = {path: [each for each in PYTHON if each.document == path and each.not_run is None] for path in DOCUMENTS}
SENDS = RUN[ROOT / "docs" / "start.md"][0]
"""Guides follow the tutorial, so their snippets meet what it sends."""
FOLLOWED = (ROOT / "docs" / "start.md",)
"""`test_start.py` runs its snippets, with its commands."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def document(path: Path) -> str:
    return name_of(path)


# Python


@pytest.mark.slow
def test_every_snippet_and_every_example_passes_mypy_strict(tmp_path: Path) -> None:
    """The control is in the same run: an option that does not exist is found."""
    names = {}
    for number, snippet in enumerate(PYTHON):
        names[f"snippet_{number}.py"] = snippet.name
        (tmp_path / f"snippet_{number}.py").write_text(snippet.code, "utf-8")
    for path in EXAMPLES:
        (tmp_path / path.name).write_text(path.read_text("utf-8"), "utf-8")
    (tmp_path / "wrong.py").write_text('from lanemq import Producer\n\nProducer("localhost:9876", lingers=1)\n')
    found = mypy(tmp_path)
    for file, name in names.items():
        found = re.sub(rf"\b{re.escape(file)}:", f"{name} + line ", found)
    errors = [line for line in found.splitlines() if ": error: " in line]
    control = [line for line in errors if line.startswith("wrong.py:")]
    assert 'Unexpected keyword argument "lingers"' in "".join(control)
    assert [line for line in errors if line not in control] == []


def mypy(folder: Path) -> str:
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", ROOT / "pyproject.toml"]
    files = sorted(path.name for path in folder.glob("*.py"))
    words += ["--cache-dir", ROOT / "var" / "mypy_documents", *files]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if RUN[path] and path not in FOLLOWED], ids=document)
def test_snippets_run_in_the_order_of_their_document(path: Path, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=8, ordered=True)
        if path.parent.name == "guides":
            run(SENDS, broker.address, tmp_path)
        for snippet in RUN[path]:
            printed = run(snippet, broker.address, tmp_path)
            if snippet.prints is not None:
                assert printed == snippet.prints, snippet.name


def run(snippet: Snippet, address: str, folder: Path) -> str:
    """What the snippet prints. It runs as a program of its own, with the address of the test's broker."""
    words = [sys.executable, "-c", snippet.code.replace(ADDRESS, address)]
    printed = ""
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        stuck = threading.Timer(SECONDS, process.kill)
        stuck.start()
        try:
            if snippet.until is not None:
                assert process.stdout is not None
                # Handlers print from several threads, so a line may hold the text of two.
                while snippet.until not in printed and (line := process.stdout.readline()):
                    printed += line
                process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate()
        finally:
            stuck.cancel()
    assert snippet.until is None or snippet.until in printed, (
        f"{snippet.name} ended without {snippet.until!r}: {errors}"
    )
    assert process.returncode == 0, f"{snippet.name}: {errors}"
    return printed + rest


def test_a_snippet_that_is_not_run_here_names_the_test_that_runs_it() -> None:
    """Except where it needs machines that a page describes. The test reads the page, or it would run something else."""
    for snippet in PYTHON:
        if snippet.not_run is None or snippet.not_run.endswith("of this page"):
            continue
        file = re.search(r"tests/[\w/]+\.py", snippet.not_run)
        assert file is not None, f"{snippet.name} is run by no test: {snippet.not_run}"
        text = (ROOT / file[0]).read_text("utf-8")
        assert snippet.document.name in text or file[0] in text, f"{file[0]} does not run {snippet.name}"


def test_comments_in_front_of_a_fence_say_how_it_is_run() -> None:
    text = "\n".join(
        [
            "<!-- with: import os -->",
            "<!-- until: done -->",
            "```python",
            "print(os.name)",
            "```",
            "It prints:",
            "",
            "<!-- prints -->",
            "```text",
            "posix",
            "```",
            "",
        ]
    )
    first, second = in_text(ROOT / "x.md", text)
    assert (first.code, first.until, first.not_run, first.prints) == (
        "import os\nprint(os.name)\n",
        "done",
        None,
        "posix\n",
    )
    assert (second.language, second.prints) == ("text", None)


# names


def named() -> Iterator[tuple[str, str, str]]:
    """Document, module and name of every `from lanemq… import …`, in fences and in sentences."""
    for path in DOCUMENTS:
        for module, names in re.findall(r"from (lanemq[\w.]*) import \(?([\w, \n]+)", path.read_text("utf-8")):
            for name in re.findall(r"\w+", names.split("\n\n")[0] if "(" in names else names.splitlines()[0]):
                yield name_of(path), module, name


def test_everything_that_a_document_imports_exists() -> None:
    found = sorted(set(named()))
    assert len(found) > 10
    assert [each for each in found if not hasattr(importlib.import_module(each[1]), each[2])] == []


def test_every_dotted_name_of_lanemq_in_a_document_exists() -> None:
    names = {
        (name_of(path), name)
        for path in DOCUMENTS
        for name in re.findall(r"`(lanemq(?:\.\w+)+)(?:\([^`]*\))?`", path.read_text("utf-8"))
    }
    assert [each for each in sorted(names) if not exists(each[1])] == []


INTERNAL = (
    "docs/architecture.md",
    "docs/developers/rocketmq-order.md",
    "docs/decisions/",
    "interop/",
)
"""Pages for people who read the code; they may name classes that are not public."""
PUBLIC_MODULES = (
    "lanemq",
    "lanemq.effects",
    "lanemq.errors",
    "lanemq.pipelines",
    "lanemq.spark",
    "lanemq.spark.lag",
    "lanemq.testing",
)


@pytest.mark.slow
def test_every_class_that_a_page_for_users_names_is_public() -> None:
    classes = {
        node.name
        for path in (ROOT / "src" / "lanemq").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    public = {name for module in PUBLIC_MODULES for name in dir(importlib.import_module(module))}
    names = {
        (name_of(path), name)
        for path in DOCUMENTS
        if not name_of(path).startswith(INTERNAL)
        for name in re.findall(r"`([A-Z][A-Za-z]+)\b[^`]*`", path.read_text("utf-8"))
    }
    assert [each for each in sorted(names) if each[1] in classes - public] == []


def exists(dotted: str) -> bool:
    module, _, name = dotted.rpartition(".")
    try:
        importlib.import_module(dotted)
    except ImportError:
        return hasattr(importlib.import_module(module), name)
    return True


# commands and files


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for snippet in snippets("sh"):
        for line in snippet.code.replace("\\\n", " ").splitlines():
            words = [word for word in shlex.split(line, comments=True) if word != "&"]
            words = words[3:] if words[:2] == ["sudo", "-u"] else words
            if "lanemq" in words[:1]:
                found.append((snippet.name, words[: words.index(">")] if ">" in words else words))
    return found


@pytest.mark.parametrize(("where", "words"), commands(), ids=lambda each: each if isinstance(each, str) else "")
def test_a_command_parses(where: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parses the command as click would, without running it. Files and folders that it names exist, in the test's own
    folder."""
    monkeypatch.chdir(tmp_path)
    words = [re.sub(r"^/(?=[\w-]+/)", "", word) for word in words]
    for word in words:
        if re.search(r"\.(toml|py|pem|key)$|^secret$", word):
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            text = (ROOT / "deploy" / "lanemq.toml").read_text("utf-8") if word.endswith("lanemq.toml") else ""
            (tmp_path / word).write_text(text, "utf-8")
        elif re.fullmatch(r"[\w-]+(/[\w-]+)+", word):
            (tmp_path / word).mkdir(parents=True, exist_ok=True)
    context, command, rest = click.Context(main), main.get_command(click.Context(main), words[1]), words[2:]
    while isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    assert command is not None, where
    command.make_context(words[1], rest, parent=context)


def test_the_reference_lists_every_command() -> None:
    text = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    assert re.findall(r"^\| `lanemq (\w+)` \|", text, re.MULTILINE) == main.list_commands(click.Context(main))


def test_every_test_file_that_a_document_names_exists() -> None:
    named = {
        (name_of(path), file)
        for path in DOCUMENTS
        for file in re.findall(r"\btests/[\w/]+\.py", path.read_text("utf-8"))
    }
    assert [each for each in sorted(named) if not (ROOT / each[1]).is_file()] == []


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("## Parts of a pipeline", "Pipeline"),
        ("## Transitions", "Transitions"),
        ("### StateLimits", "StateLimits"),
        ("## LastState", "LastState"),
        ("## Project", "Project"),
    ],
)
def test_the_reference_lists_every_option_of_a_pipeline(title: str, name: str) -> None:
    pipelines = pytest.importorskip("lanemq.pipelines")
    text = (ROOT / "docs" / "reference" / "pipelines.md").read_text("utf-8")
    section = re.split(r"^##+ ", text.split(f"{title}\n")[1], flags=re.MULTILINE)[0]
    options = [option for option in inspect.signature(getattr(pipelines, name)).parameters if option != "clock"]
    assert options
    assert [option for option in options if not re.search(rf"\b{option}\b", section)] == []


DECLARED = [each for each in snippets("toml") if "[pipeline]" in each.code]


@pytest.mark.parametrize("snippet", DECLARED, ids=lambda each: each.name)
def test_a_pipeline_file_loads(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = pytest.importorskip("lanemq.pipelines").load
    for name in re.findall(r"\$\{(\w+)\}", snippet.code):
        monkeypatch.setenv(name, "value")
    for module in re.findall(r'"(\w+):step"', snippet.code):
        (tmp_path / f"{module}.py").write_text("def step(state, event):\n    return state, []\n")
    (tmp_path / "declared.toml").write_text(snippet.code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    load(tmp_path / "declared.toml")


# links and pictures


@pytest.mark.parametrize("path", DOCUMENTS, ids=document)
def test_links_lead_somewhere(path: Path) -> None:
    """To files, and to headings in them."""
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    broken = []
    for link, _, anchor in re.findall(r"\]\(([^)#:\s]*)(#([^)]*))?\)", text):
        target = path.parent / link if link else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{link}#{anchor}")
    assert broken == []


def anchors(path: Path) -> set[str]:
    """The names under which headings can be linked to, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_example_has_a_line_in_their_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text("utf-8")
    files = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".toml"}}
    assert set(re.findall(r"^\| \[([\w.]+)\]", listed, re.MULTILINE)) == files
