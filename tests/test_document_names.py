"""What a document names in code formatting exists: calls such as `producer.send(...)`, and all other single names."""

import ast
import builtins
import functools
import importlib
import inspect
import re
from pathlib import Path

import click
import pytest
from tests.documents import DOCUMENTS, ROOT, name_of, snippets

from lanemq.cli.main import main

PACKAGES = ("lanemq", "lanemq.spark", "lanemq.testing", "lanemq.effects", "lanemq.pipelines", "lanemq.errors")
FOR_DEVELOPERS = (
    "decisions",
    "developers",
    "interop",
    "architecture.md",
    "CONTRIBUTING.md",
    "RESULTS.md",
)
"""They name what is inside."""
FOREIGN = {
    **dict.fromkeys(("DeltaTable", "delta_scan", "parquet", "addListener", "where"), "Spark, Delta, DuckDB"),
    **dict.fromkeys(("char", "varchar", "numeric", "decimal", "timestamptz", "day", "cast", "try_cast"), "SQL"),
    **dict.fromkeys(("UUID", "datetime", "run_in_executor"), "Python"),
    **dict.fromkeys(("model_dump", "model_dump_json", "patch_all"), "Pydantic, gevent"),
    **dict.fromkeys(("setKeys", "setClientRebalance"), "RocketMQ"),
    "histogram_quantile": "Prometheus",
    "request": "a module of another program",
    "SystemClock": "the default of an option",
}
"""Names of other programs, each with its owner."""

OTHER_WORDS = {
    "Kafka, Debezium, canal, Maxwell": "acks adaptive flatMessage idempotence JsonConverter partitionHash placeholder "
    "converter output_xoffset producer_partition_by TRUNCATE",
    "RocketMQ and its clients": "ConsumeOrderlyContext ConsumeOrderlyStatus DefaultLitePullConsumer "
    "ConsumeFromWhere DefaultMQPushConsumer Integer Long "
    "LaneMQ_REPLY_TOPIC MessageListenerConcurrently MessageListenerOrderly SelectMessageQueueByHash String "
    "allAckInSyncStateSet enableElectUncleanMaster enableSsl instanceName librocketmq minInSyncReplicas mqadmin "
    "slaveReadEnable",
    "databases": "NOCASE REPLICATION binlog_row_image inet pg_advisory_lock wal_level",
    "Spark, Hadoop, Delta, Arrow": "DATA_SOURCE_NOT_FOUND HADOOP_CONF_DIR RESTORE assert_true raise_error dataset "
    "deletedFileRetentionDuration explode transformWithState",
    "Amazon": "AWS_ACCESS_KEY_ID AWS_REGION AWS_SECRET_ACCESS_KEY",
    "Python, Pydantic, pytest, trio, OpenTelemetry, OpenSSL": "SecretStr __del__ exclude_unset ini run_sync "
    "subjectAltName traceparent",
    "made of two names of LaneMQ's": "LANEMQ_BROKER_MAX_CONNECTIONS LANEMQ_BROKER_NAME LANEMQ_COORDINATOR_ "
    "LANEMQ_FROM_TLS_CA LANEMQ_TO_ACCESS_KEY LANEMQ_TO_SECRET_KEY_FILE _LANEMQ_COMPLETE lanemq_batch "
    "lanemq_effects_epochs name_epochs _ms",
    "the runs of interop": "COMBOS Listening cpp java49 java5 protoc rust send_batch unsupported",
}
"""Names in code formatting that are neither calls nor LaneMQ's, by their owner."""


NO_CODE = re.compile(r'"""[\s\S]*?"""|(?m:^\s*#.*$)')


@functools.cache
def names_of_the_code() -> frozenset[str]:
    """Every word of the sources outside of docstrings and comments: names, options, metrics, columns."""
    found: set[str] = set()
    folders = ("src", "examples", "scripts")
    for path in (
        each for folder in folders for each in (ROOT / folder).rglob("*.py*") if each.suffix in (".py", ".pyi")
    ):
        code = NO_CODE.sub("", path.read_text("utf-8"))
        found |= {path.stem, *path.parts, *re.findall(r"\w+", code)}
    for path in (*(ROOT / "deploy").iterdir(), ROOT / "Makefile", ROOT / "pyproject.toml"):
        found.update(re.findall(r"\w+", path.read_text("utf-8")))
    return frozenset(found)


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


@functools.cache
def options_of(command: click.Command) -> set[str]:
    """The flags of a command and of all below it."""
    found = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= options_of(below)
    return found


def unknown_commands(text: str) -> list[str]:
    """Commands and flags of `lanemq` in code formatting that it does not have."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    codes = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    flags = options_of(main) | {"--help", "--preload", "--version", "--tls-"}  # of gunicorn; and a prefix
    wrong = [code for code in codes if code.startswith("--") and re.match(r"--[\w-]+", code)[0] not in flags]  # type: ignore[index]
    for code in (each for each in codes if re.match(r"lanemq( [\w-]+)+", each)):
        command: click.Command | None = main
        for word in code.split()[1:]:
            if not isinstance(command, click.Group) or not re.fullmatch("[a-z][a-z-]*", word):
                break
            command = command.get_command(click.Context(command), word)
            if command is None:
                wrong.append(code)
        if command is not None:
            known = options_of(command) | {"--help", "--version"}
            wrong += [code for flag in re.findall(r"(?<![\w-])--[a-z-]+", code) if flag not in known]
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_command_and_flag_in_code_formatting_exists(path: Path) -> None:
    if any(part in FOR_DEVELOPERS for part in path.relative_to(ROOT).parts) or path.name == "CHANGELOG.md":
        pytest.skip("for developers, or about the past")
    assert unknown_commands(path.read_text("utf-8")) == []


def test_a_command_or_a_flag_that_does_not_exist_is_found() -> None:
    assert unknown_commands("`lanemq group rest G`, `--serverr`, `lanemq why KEY --grup g`, `lanemq topic list`") == [
        "--serverr", "lanemq group rest G", "lanemq why KEY --grup g"
    ]  # fmt: skip


SINGLE_NAME = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:=.*)?")


def unknown_names(text: str, shown: frozenset[str] = frozenset()) -> list[str]:
    """The single names in code formatting, with or without a value (`timeout=5`), that nothing has."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    codes = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    named = [match[1] for code in codes if (match := SINGLE_NAME.fullmatch(code))]
    others = {word for words in OTHER_WORDS.values() for word in words.split()}
    known = names_of_the_code() | public_names() | shown | FOREIGN.keys() | others
    return [name for name in named if name.rpartition(".")[2] not in known]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_name_in_code_formatting_exists(path: Path) -> None:
    if any(part in FOR_DEVELOPERS for part in path.relative_to(ROOT).parts) or path.name == "CHANGELOG.md":
        pytest.skip("for developers, or about the past")
    assert unknown_names(path.read_text("utf-8"), shown_names().get(path, frozenset())) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert unknown_names("Set `max_kept_lanes=5` or `timeout=5`; see `message.keyz`.") == [
        "max_kept_lanes", "message.keyz"
    ]  # fmt: skip


def test_words_of_others_are_used_somewhere_and_are_not_ours() -> None:
    words = {word for words in OTHER_WORDS.values() for word in words.split()}
    codes = {code for path in DOCUMENTS for code in re.findall(r"`([^`\n]+)`", path.read_text("utf-8"))}
    used = {part for code in codes for part in re.findall(r"\w+", code)}
    assert words - used == set()
    assert words & names_of_the_code() == set()


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
