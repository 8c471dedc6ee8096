"""Pipelines from TOML and Python files, and the errors for wrong ones."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.pipelines import LastState, ParquetSink, Pipeline, Project, SqliteSink, Topic, Transitions
from lanemq.pipelines.declare.files import load, load_all

WHOLE = """
[pipeline]
name = "orders"
checkpoint = "/tmp/nowhere/checkpoint"
trigger = "5s"

[source]
servers = "${TEST_SERVERS}"
topic = "orders"
maxOffsetsPerTrigger = 1000
failOnDataLoss = false

[stage]
kind = "transitions"
step = "steps_beside:count"
outputs = "order_id string, total long"
decode = "json"
on_failure = { kind = "hold", retries = 3 }
limits = { snapshot_every = 8 }

[sink]
kind = "sqlite"
path = "/tmp/nowhere/orders.db"
table = "orders"

[dead_letters]
kind = "parquet"
path = "/tmp/nowhere/dead"

[spark]
"spark.sql.shuffle.partitions" = 4
"""
STEPS = """
def count(state, event):
    return (state or 0) + 1, [{"order_id": event.key, "total": (state or 0) + 1}]
"""
PYTHON = """
from lanemq.pipelines import ParquetSink, Pipeline, Project, Topic

def declare(name):
    return Pipeline(name, Topic("localhost:9876", "orders"), Project(["key"]), ParquetSink("/tmp/nowhere"), "/tmp/c")

"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file with this text, with `steps_beside.py` beside it."""
    monkeypatch.setenv("TEST_SERVERS", "localhost:9876")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "steps_beside.py").write_text(STEPS)

    def to_file(text: str, name: str = "declared.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    yield to_file
    for name in ("steps_beside", "declared"):
        module = sys.modules.pop(name, None)
        if module is not None and name in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(module)


def test_a_toml_file_declares_a_pipeline(write: Write) -> None:
    found = load(write(WHOLE))
    assert (found.name, found.trigger_ms, str(found.folder)) == ("orders", 5000, "/tmp/nowhere/checkpoint")
    assert found.source.parsed.servers == "localhost:9876"
    assert found.source.parsed.max_offsets == 1000
    assert not found.source.parsed.fail_on_data_loss
    assert isinstance(found.stage, Transitions)
    assert isinstance(found.sink, SqliteSink)
    assert isinstance(found.dead_letters, ParquetSink)
    assert found.spark == {"spark.sql.shuffle.partitions": "4"}


def test_code_beside_the_file_is_pickled_with_the_job(write: Write) -> None:
    """Executors do not have the folder on their path, so pickled functions must contain their code."""
    load(write(WHOLE))
    step = sys.modules["steps_beside"].count
    packed = cloudpickle.dumps(step)
    del sys.modules["steps_beside"]
    sys.path[:] = [place for place in sys.path if "pytest" not in place]
    assert cloudpickle.loads(packed)(None, type("Event", (), {"key": "k"})) == (1, [{"order_id": "k", "total": 1}])


def test_the_options_of_the_other_stages_can_be_declared(write: Write) -> None:
    stage = '[stage]\nkind = "last_state"\nschema = "id bigint, name string"\nkeys = ["id"]\nformat = "debezium"\n'
    sink = '[sink]\nkind = "delta"\npath = "/tmp/nowhere/t"\n'
    head = WHOLE[: WHOLE.index("[stage]")]
    assert isinstance(
        load(write(head + stage + 'sequence = ["source.file:file", "source.pos"]\n' + sink)).stage, LastState
    )
    stage = '[stage]\nkind = "project"\nselect = ["key"]\n'
    assert isinstance(load(write(head + stage + sink)).stage, Project)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('topic = "orders"', "", r"\[source\] topic: give either"),
        ('servers = "${TEST_SERVERS}"', "", r"\[source\] servers: missing"),
        ("maxOffsetsPerTrigger", "maxOfsetsPerTrigger", r"\[source\] maxofsetspertrigger: .*did you mean maxOffsets"),
        ("${TEST_SERVERS}", "${TEST_NO_SUCH}", r"\[source\] servers: the environment variable TEST_NO_SUCH is not set"),
        ('kind = "transitions"', 'kind = "transition"', r"\[stage\] kind: 'transition' is unknown; use one of trans"),
        ('kind = "transitions"', "", r"\[stage\] kind: missing"),
        ('step = "steps_beside:count"', "", r"\[stage\] step: missing"),
        ("steps_beside:count", "steps_beside", r"\[stage\] step: .* should look like module:function"),
        ("steps_beside:count", "steps_beside:total", r"\[stage\] step: module 'steps_beside' has no 'total'"),
        ("steps_beside:count", "elsewhere:count", r"\[stage\] step: module 'elsewhere' is neither beside"),
        ("decode =", "decoding =", r"\[stage\] decoding: there is no such option; did you mean decode\?"),
        ("retries = 3", 'retries = "3"', r"\[stage\] on_failure\.retries: '3' is not a whole number"),
        ("retries = 3", "factor = true", r"\[stage\] on_failure\.factor: True is not a number"),
        ('"hold", retries = 3', '"park", retries = 3', r"\[stage\] on_failure\.retries: .*there are none"),
        ("snapshot_every = 8", "snapshot_evry = 8", r"\[stage\] limits\.snapshot_evry: .*did you mean snapshot_every"),
        ('decode = "json"', 'first_number = "1"', r"\[stage\] first_number: '1' is not a whole number"),
        ('path = "/tmp/nowhere/orders.db"', 'pth = "x"\npath = "x"', r"\[sink\] pth: .*did you mean path\?"),
        ("retries = 3", "retrys = 3", r"\[stage\] on_failure\.retrys: .*did you mean retries\?"),
        ('kind = "hold"', 'kind = "wait"', r"\[stage\] on_failure: .* use one of hold, park, dead_letter"),
        ("snapshot_every = 8", 'expire_after = "soon"', r"\[stage\] limits\.expire_after: 'soon' is not a duration"),
        ("snapshot_every = 8", "expire_after = true", r"\[stage\] limits\.expire_after: True is not a number"),
        ("snapshot_every = 8", "snapshot_every = 0", r"\[stage\] .*snapshot_every"),
        ('kind = "sqlite"', 'kind = "excel"', r"\[sink\] kind: there is no sink 'excel'"),
        ('kind = "sqlite"', "", r"\[sink\] kind: missing"),
        ('table = "orders"', "", r"\[sink\] table: missing"),
        ('trigger = "5s"', 'trigger = "often"', r"\[pipeline\] trigger: 'often' is not a duration"),
        ('trigger = "5s"', 'triger = "5s"', r"\[pipeline\] triger: .*did you mean trigger\?"),
        ('name = "orders"', "", r"\[pipeline\] name: missing"),
        ("[dead_letters]", "[dead_leters]", r"\[dead_leters\]: there is no such table; did you mean dead_letters\?"),
        ("[pipeline]", "[pipeline", "the file is not valid TOML"),
    ],
)
def test_every_error_names_file_table_and_option(write: Write, old: str, new: str, error: str) -> None:
    assert old in WHOLE
    path = write(WHOLE.replace(old, new, 1))
    with pytest.raises(InvalidOption, match=rf"declared\.toml: {error}"):
        load(path)


def test_a_python_file_may_declare_several_pipelines(write: Write) -> None:
    path = write(PYTHON + "first = declare('a')\nalso_first = first\nsecond = declare('b')\n", "declared.py")
    assert sorted(load_all(path)) == ["a", "b"]
    assert load(path, "b").name == "b"
    with pytest.raises(UsageError, match="declares a, b: choose one with --name"):
        load(path)
    with pytest.raises(UsageError, match="there is no pipeline 'c', only a, b"):
        load(path, "c")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x = 1", "no pipeline is declared"),
        ("first = declare('a')\nsecond = declare('a')", "two pipelines are called 'a'"),
        ("\nraise KeyError('x')", r"line 8: KeyError: 'x'"),
        ("import no_such_module", r"line 7: ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        ("pipeline = declare('no blanks')", "name: 'no blanks' is not a valid name"),
    ],
)
def test_an_error_in_a_python_file_names_its_line(write: Write, text: str, error: str) -> None:
    with pytest.raises(UsageError, match=rf"declared\.py: .*{error}"):
        load(write(PYTHON + text, "declared.py"))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("Hold(retry=5)", r"Hold\(retry=...\): there is no such option; did you mean retries\?"),
        ("DeltaSink(pth='/tmp/x')", r"DeltaSink\(pth=...\): there is no such option; did you mean path\?"),
        ("Park(retries=5)", r"Park\(retries=...\): there is no such option; there are none"),
        ("Transitions(step=print)", r"Transitions\(outputs\): missing"),
        ("LastState(keys=['id'])", r"LastState\(schema\): missing"),
        ("Pipeline(sinc=1)", r"Pipeline\(sinc=...\): there is no such option; did you mean sink\?"),
    ],
)
def test_an_unknown_keyword_is_answered_with_the_nearest_option(write: Write, call: str, error: str) -> None:
    path = write(f"from lanemq.pipelines import *\n\nwrong = {call}\n", "declared.py")
    with pytest.raises(InvalidOption, match=rf"declared\.py: line 3: {error}"):
        load(path)


def test_a_type_error_of_foreign_code_is_not_reported_as_an_option(write: Write) -> None:
    path = write("def mine(a):\n    pass\n\nmine(b=1)\n", "declared.py")
    with pytest.raises(UsageError, match=r"line 4: TypeError: mine\(\) got an unexpected keyword argument 'b'"):
        load(path)


def test_text_in_place_of_a_list_is_refused(write: Write) -> None:
    """To Python a text is a sequence of texts: `keys = "id"` would mean the columns i and d."""
    stage = '[stage]\nkind = "last_state"\nschema = "id bigint, name string"\nkeys = "id"\n'
    sink = '[sink]\nkind = "delta"\npath = "/tmp/nowhere/t"\n'
    with pytest.raises(InvalidOption, match=r"\[stage\] keys: 'id' is not a list of texts"):
        load(write(WHOLE[: WHOLE.index("[stage]")] + stage + sink))


def test_a_merging_stage_with_an_appending_sink_is_refused(write: Write) -> None:
    stage = '[stage]\nkind = "last_state"\nschema = "id bigint, name string"\nkeys = ["id"]\n'
    sink = '[sink]\nkind = "parquet"\npath = "/tmp/nowhere/t"\n'
    with pytest.raises(InvalidOption, match="ParquetSink only adds rows, and LastState replaces them: use DeltaSink"):
        load(write(WHOLE[: WHOLE.index("[stage]")] + stage + sink))
    with pytest.raises(InvalidOption, match="ParquetSink only adds rows"):
        declared(stage=LastState("id bigint", ["id"]))
    assert declared(stage=LastState("id bigint", ["id"]), sink=SqliteSink("/tmp/x", "t"))


def test_relative_paths_are_relative_to_the_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the documentation says. A Python file cannot do anything else, so a TOML file does the same."""
    path = write(WHOLE.replace("/tmp/nowhere/checkpoint", "var/checkpoint"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(path).folder == tmp_path / "elsewhere" / "var" / "checkpoint"


def test_files_of_other_types_and_missing_files_are_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"declared in \.toml or \.py files"):
        load(write("", "declared.yaml"))
    with pytest.raises(UsageError, match="there is no such file"):
        load(tmp_path / "none.toml")


def declared(**parts: Any) -> Pipeline:
    usual = {"source": Topic("localhost:9876", "orders"), "stage": Project(["key"]), "sink": ParquetSink("/tmp/x")}
    return Pipeline(**({"name": "orders", "checkpoint": "/tmp/c"} | usual | parts))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"source": "orders"}, "source: .* is not a topic"),
        ({"stage": None}, "stage: None is not a stage"),
        ({"sink": None}, "sink: missing"),
        ({"sink": "here"}, "sink: 'here' is not a sink"),
        ({"dead_letters": 1}, "dead_letters: 1 is not a sink"),
        ({"checkpoint": ""}, "checkpoint: empty"),
        ({"checkpoint": "ftp://host/x"}, "checkpoint: .*does not know ftp"),
        ({"trigger": "25h"}, "trigger: 25h is not between 0 and a day"),
        ({"trigger": "90000"}, "trigger: 90000 is not between 0 and a day"),
    ],
)
def test_a_wrong_part_is_refused_when_the_pipeline_is_declared(parts: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        declared(**parts)


def test_one_sink_cannot_also_take_the_dead_letters() -> None:
    sink = ParquetSink("/tmp/x")
    with pytest.raises(InvalidOption, match="the same object as sink"):
        declared(sink=sink, dead_letters=sink)


def test_options_of_a_topic_may_be_numbers_booleans_lists_and_dicts() -> None:
    topic = Topic("a:1", "t", startingOffsets={"t": {"0": 5}}, failOnDataLoss=False, columns=["key", "value"])
    assert topic.options["startingOffsets"] == '{"t": {"0": 5}}'
    assert topic.parsed.columns == ("key", "value")
    with pytest.raises(InvalidOption, match="cannot be an option"):
        Topic("a:1", "t", tags=object())
    with pytest.raises(InvalidOption, match="colour"):
        Topic("a:1", "t", columns="colour")


def test_a_pipeline_without_starting_offsets_begins_with_the_first_message() -> None:
    assert Topic("a:1", "t").options["startingOffsets"] == "earliest"
    assert Topic("a:1", "t", group="g").options["startingOffsets"] == "earliest"
    assert "startingOffsets" not in Topic("a:1", "t", startingTimestamp=5).options
    assert Topic("a:1", "t", group="g").at("b:2").options["group"] == "g"
