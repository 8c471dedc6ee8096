"""`Project`: messages for which an expression fails become dead letters, and all others are written."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.pipelines.fakes import FakeSink
from tests.spark.spark_driver import send

from lanemq.client.producer.producer import Producer
from lanemq.model.errors import InvalidOption
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.ports import Results
from lanemq.pipelines.running.failure import PipelineFailed
from lanemq.pipelines.running.progress import Progress
from lanemq.pipelines.running.runner import start
from lanemq.pipelines.sinks.sqlite import SqliteSink
from lanemq.pipelines.source import Topic
from lanemq.pipelines.stages.project import Project, is_caused_by_value, setting
from lanemq.testing.embedded import EmbeddedBroker

NUMBER = "cast(cast(value as string) as int)"
SHARED = ["queue_id", "queue_offset", f"{NUMBER} as n", f"1000 / ({NUMBER} - 7)"]
"""Fails for a text, for a number that is too large, and for 7. Has the same part twice, which Spark would share."""


class Seen(Project):
    """Remembers the results of every batch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.results: list[Results] = []

    def process(self, messages: DataFrame, batch: Batch) -> Results:
        self.results.append(super().process(messages, batch))
        return self.results[-1]


class Settings(dict[str, str]):
    """The settings of a session."""

    @property
    def conf(self) -> "Settings":
        return self

    def set(self, name: str, value: str) -> None:
        self[name] = value


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_message_that_fails_is_a_dead_letter_and_the_query_continues(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    bodies = {"k-4": b"left out", "k-1": b"abc", "k-2": b"5000000000", "k-3": b"7"}
    send(broker.address, topic, range(20, 60))
    with Producer(broker.address) as producer:
        for key, body in bodies.items():
            producer.send(topic, body, key=key)

    def pipeline(**options: Any) -> Pipeline:
        stage = Seen(SHARED, where="key <> 'k-4' AND key IS NOT NULL", **options)
        return Pipeline(
            "landing", Topic(broker.address, topic), stage, sink, tmp_path / "checkpoint", dead_letters=dead
        )

    sink, dead, reports = FakeSink(), FakeSink(), list[Progress]()
    with pytest.raises(PipelineFailed, match=r"CAST_|DIVIDE_BY_ZERO"):
        start(pipeline(on_poison="fail"), spark, once=True).await_end(600)
    tolerant = pipeline()
    assert start(tolerant, spark, once=True, report=reports.append).await_end(600)
    assert sorted(row[2] for row in sink.rows) == list(range(20, 60))
    assert sink.rows == sorted(sink.rows, key=lambda row: (row[0], row[1])), "in the order of their queue"
    letters = {row[4]: row for row in dead.rows}
    assert {key: row[5] for key, row in letters.items()} == {key: bodies[key] for key in ("k-1", "k-2", "k-3")}
    assert letters["k-1"][8] == f"cannot be computed: {SHARED[2]}; {SHARED[3]}"
    assert letters["k-3"][8] == f"cannot be computed: {SHARED[3]}"
    assert {row[0] for row in dead.rows} == {topic}
    assert all(row[3] is not None and row[12] is False for row in dead.rows)
    assert (reports[0].applied.dead_letters, reports[0].applied.counts) == (3, {"events": 43, "poison": 3})
    send(broker.address, topic, range(60, 70))
    assert start(pipeline(), spark, once=True).await_end(600)
    assert (len(sink.rows), len(dead.rows)) == (50, 3)
    whole = Pipeline(
        "whole", Topic(broker.address, topic), Project([f"explode(array({NUMBER}))"]), FakeSink(), tmp_path / "whole"
    )
    with pytest.raises(PipelineFailed, match="CAST_INVALID_INPUT"):
        start(whole, spark, once=True).await_end(600)


TEXTS = [
    "queue_offset",
    "cast(value as string) as event",
    "array(map('text', named_struct('it', cast(value as string)))) as nested",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_body_that_is_not_text_is_a_dead_letter_and_the_query_continues(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """Spark's cast keeps the bytes, and every sink would fail at them."""
    bodies = [b"one", b"two \xff\xfe", "drei \u00fc".encode(), b"\xc3", b"nul \x00"]
    with Producer(broker.address) as producer:
        for body in bodies:
            producer.send(topic, body, key="k")

    def pipeline(**options: Any) -> Pipeline:
        source, stage = Topic(broker.address, topic), Project(TEXTS, **options)
        return Pipeline("landing", source, stage, sink, tmp_path / "checkpoint", dead_letters=dead)

    sink, dead = FakeSink(), FakeSink()
    with pytest.raises(PipelineFailed, match=rf"{topic}/.* offset 1: an expression gives a text that is not UTF-8"):
        start(pipeline(on_poison="fail"), spark, once=True).await_end(600)
    assert start(pipeline(), spark, once=True).await_end(600)
    assert [row[:2] for row in sink.rows] == [(0, "one"), (2, "drei \u00fc"), (4, "nul \x00")]
    assert [(row[0], row[3], row[5]) for row in dead.rows] == [(topic, 1, bodies[1]), (topic, 3, bodies[3])]
    assert (
        dead.rows[0][8]
        == f"cannot be computed: {'; '.join(f'{each} (a text that is not UTF-8)' for each in TEXTS[1:])}"
    )


MILLIS = "timestamp_millis(cast(cast(value as string) as bigint))"
TIMES = [
    "queue_offset",
    f"{MILLIS} as time",
    f"cast({MILLIS} as date) as day",
    f"array(map('time', named_struct('it', {MILLIS}))) as nested",
    f"map(cast({MILLIS} as timestamp_ntz), 1) as keyed",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_time_outside_the_years_1_to_9999_is_a_dead_letter_and_the_query_continues(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """Spark has times up to the year 294247. Microseconds that were taken for milliseconds are there."""
    first, last = -62_135_596_800_000, 253_402_300_799_999
    with Producer(broker.address) as producer:
        for millis in (0, 1_700_000_000_000_000, first, first - 1, last, last + 1):
            producer.send(topic, str(millis).encode(), key="k")
    dead, table = FakeSink(), tmp_path / "table"
    source, sink = Topic(broker.address, topic), SqliteSink(table, "rows")
    pipeline = Pipeline("landing", source, Project(TIMES), sink, tmp_path / "checkpoint", dead_letters=dead)
    assert start(pipeline, spark, once=True).await_end(600)
    with closing(sqlite3.connect(table)) as found:
        assert found.execute("SELECT queue_offset, day FROM rows ORDER BY 1").fetchall() == [
            (0, "1970-01-01"),
            (2, "0001-01-01"),
            (4, "9999-12-31"),
        ]
    assert [row[3] for row in dead.rows] == [1, 3, 5]
    remarks = "; ".join(f"{each} (a time outside the years 1 to 9999)" for each in TIMES[1:])
    assert dead.rows[0][8] == f"cannot be computed: {remarks}"


def test_expressions_follow_ansi_rules_although_the_session_does_not(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """With its older rules Spark stores null for abc and 705032704 for 5000000000."""
    with Producer(broker.address) as producer:
        for body in (b"1", b"abc", b"5000000000", b"2"):
            producer.send(topic, body, key="k")
    session, sink, dead = spark.newSession(), FakeSink(), FakeSink()
    session.conf.set("spark.sql.ansi.enabled", "false")
    stage = Project(["cast(cast(value as string) as bigint) as n", f"{NUMBER} as small"])
    pipeline = Pipeline("old", Topic(broker.address, topic), stage, sink, tmp_path / "checkpoint", dead_letters=dead)
    assert start(pipeline, session, once=True).await_end(600)
    assert (sink.rows, [row[5] for row in dead.rows]) == ([(1, 1), (2, 2)], [b"abc", b"5000000000"])
    assert session.conf.get("spark.sql.ansi.enabled") == "false"


@pytest.mark.parametrize("before", ["true", "false"])
def test_the_settings_of_the_session_are_restored(before: str) -> None:
    name = "spark.sql.subexpressionElimination.enabled"
    session: Any = Settings({name: before})
    seen: list[str] = []

    def fail() -> None:
        with setting(session, name, "false"):
            seen.append(session[name])
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()
    assert (seen, session[name]) == (["false"], before)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[CAST_INVALID_INPUT] The value 'abc' ... SQLSTATE: 22018", True),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", True),
        ("[USER_RAISED_EXCEPTION] no SQLSTATE: P0001", False),
        ("the broker is away", False),
    ],
)
def test_only_errors_caused_by_a_value_make_dead_letters(text: str, expected: bool) -> None:
    assert is_caused_by_value(ValueError(text)) is expected


def test_an_unknown_on_poison_is_refused() -> None:
    with pytest.raises(InvalidOption, match="on_poison: 'null' is not one of dead_letter, fail"):
        Project(["key"], on_poison="null")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("select", "why"),
    [
        ("1 as `a.b`", r"the column a\.b has a dot or a backtick in its name.* another name with AS, such as a_b"),
        ("1 as `a``b`", "the column a`b has a dot or a backtick in its name"),
        ("null as s", r"the column s is void.* such as cast\(null as string\)"),
        ("named_struct('a', null) as s", "the column s is struct<a:void>"),
        ("array(map(1, null)) as s", "the column s is array<map<int,void>>"),
    ],
)
def test_a_column_that_no_batch_could_write_is_refused_at_the_start(
    spark: Any, tmp_path: Path, select: str, why: str
) -> None:
    Project(["key", "1 as void", "named_struct('void', 1, 'a.b', 1) as s"]).open(spark, tmp_path)
    with pytest.raises(InvalidOption, match=f"select: {why}"):
        Project(["key", select]).open(spark, tmp_path)
