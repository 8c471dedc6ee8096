"""`left_out="keep"`: a left-out column has the value of the newest earlier change that has one."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.stages.cdc.replica_fixture import Replica, Value, messages
from tests.pipelines.stages.cdc.test_formats import debezium

from lanemq.model.errors import InvalidOption
from lanemq.pipelines import LastState
from lanemq.pipelines.ports import KEPT
from lanemq.pipelines.stages.cdc import reading
from lanemq.pipelines.stages.cdc.formats.debezium import UNAVAILABLE

COLUMNS = "id bigint, a string, b string, n bigint"
Pair = tuple[str | None, Value]


def stage(**options: Any) -> LastState:
    return LastState(COLUMNS, ["id"], **{"format": "debezium", "left_out": "keep", **options})


class Source:
    """A table whose updates carry only the large (text) columns that they touched."""

    def __init__(self, dice: random.Random, changes: int) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.sent: list[tuple[int, Value]] = []
        for number in range(changes):
            key = dice.randrange(3)
            if key in self.rows and dice.random() < 0.15:
                del self.rows[key]
                self._send(number, key, "d", None)
                continue
            touched = [name for name in "ab" if key not in self.rows or dice.random() < 0.4]
            row = self.rows.setdefault(key, {"id": key, "a": None, "b": None, "n": None})
            row |= {name: f"{name}{number}" for name in touched} | {"n": number}
            self._send(number, key, "u", row | {name: UNAVAILABLE for name in "ab" if name not in touched})

    def _send(self, number: int, key: int, op: str, after: dict[str, Any] | None) -> None:
        self.sent.append((key, debezium(op, {"id": key} if after is None else None, after, lsn=number)))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    fold_first=st.sampled_from([None, False]),
    misfits=st.sampled_from(["null", "dead_letter"]),
)
def test_updates_with_only_touched_columns_follow_the_source(seed: int, fold_first: bool | None, misfits: str) -> None:
    dice = random.Random(seed)
    source = Source(dice, 30)
    pairs: list[Pair] = [(f'{{"id":{key}}}', value) for key, value in source.sent]
    with tempfile.TemporaryDirectory() as folder:
        replica, at = Replica(stage(fold_first=fold_first, misfits=misfits), Path(folder)), 0
        while at < len(pairs):
            count = dice.choice((1, 3, 20))
            batch = messages(pairs[at : at + count], first=at)
            replica.process(batch)
            if dice.random() < 0.3:
                replica.repeat(batch)
            at += count
        assert replica.live == source.rows
        assert not replica.dead


def test_columns_are_kept_across_the_chunks_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1)
    source = Source(random.Random(7), 40)
    pairs: list[Pair] = [(f'{{"id":{key}}}', value) for key, value in source.sent]
    parts = [messages(pairs[at : at + 5], first=at) for at in range(0, 40, 5)]
    replica = Replica(stage(), tmp_path)
    replica.process(pa.concat_tables(parts))
    assert replica.live == source.rows


def test_left_out_columns_unknown_to_the_batch_are_named_for_the_sink(tmp_path: Path) -> None:
    row = {"id": 1, "a": UNAVAILABLE, "b": UNAVAILABLE, "n": 1}
    pairs: list[Pair] = [('{"id":1}', debezium("u", None, row | {"b": "x"})), ('{"id":1}', debezium("u", None, row))]
    results = Replica(stage(), tmp_path).process(messages(pairs))
    [found] = results.outputs.table().to_pylist()
    assert (found["a"], found["b"], json.loads(found[KEPT])) == (None, "x", ["a"])


def test_no_value_is_kept_across_a_deletion(tmp_path: Path) -> None:
    """No source sends this, but the value of a deleted row would be worse than none."""
    row = {"id": 1, "a": "x", "b": "y", "n": 1}
    events = [debezium("c", None, row), debezium("d", {"id": 1}, None), debezium("u", None, row | {"a": UNAVAILABLE})]
    replica = Replica(stage(), tmp_path)
    replica.process(messages([('{"id":1}', event) for event in events]))
    assert replica.live == {1: row | {"a": None}}


@pytest.mark.parametrize("chunk_bytes", [1, reading.CHUNK_BYTES])
@pytest.mark.parametrize("cut", range(5))
def test_no_value_is_kept_across_a_truncation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk_bytes)
    row = {"id": 1, "a": "x", "b": "y", "n": 1}
    newer = {"id": 1, "b": "z", "n": 2}
    key = '{"id":1}'
    pairs: list[Pair] = [
        (key, debezium("c", None, row)),
        ('{"id":2}', debezium("c", None, row | {"id": 2})),
        (None, debezium("t", None, None)),
        (key, debezium("c", None, newer)),
    ]
    parts = [messages([pair], first=at) for at, pair in enumerate(pairs)]
    replica = Replica(stage(one_queue=True), tmp_path)
    for batch in (parts[:cut], parts[cut:]):
        if batch:
            replica.process(pa.concat_tables(batch))
    assert replica.live == {1: newer | {"a": None}}


def test_a_change_of_key_that_leaves_a_column_out_is_a_dead_letter(tmp_path: Path) -> None:
    """The kept value is in the row of the old key, which a merge by the new key does not find. That row is deleted."""
    replica = Replica(stage(one_queue=True), tmp_path)
    whole = {"id": 1, "a": "x", "b": "y", "n": 1}
    replica.process(messages([('{"id":1}', debezium("c", None, whole))]))
    moved = debezium("u", {"id": 1}, whole | {"id": 2, "a": UNAVAILABLE})
    replica.process(messages([('{"id":2}', moved)], first=1))
    assert (replica.live, replica.tombstones()) == ({}, {1})
    assert "left a out" in replica.dead[0]["reason"]
    assert "the row of its old key is deleted" in replica.dead[0]["reason"]


@pytest.mark.parametrize("other", ['{"id": 1}', None])
@pytest.mark.parametrize("fold_first", [None, False])
def test_no_value_is_kept_across_a_deletion_under_another_message_key(
    tmp_path: Path, fold_first: bool | None, other: str | None
) -> None:
    """Written differently, or without a key: the messages of one message key do not show that the row was deleted."""
    row = {"id": 1, "a": "x", "b": "y", "n": 1}
    pairs: list[Pair] = [
        *[('{"id":1}', debezium("c", None, row))] * 4,
        (other, debezium("d", {"id": 1}, None)),
        ('{"id":1}', debezium("u", None, row | {"a": UNAVAILABLE})),
    ]
    replica = Replica(stage(fold_first=fold_first), tmp_path)
    replica.process(messages(pairs))
    assert replica.live == {1: row | {"a": None}}


WHOLE = {"id": 1, "a": "x", "b": "y", "n": 1}
AS_JSON = {"format": "json"}


def partial(**given: Any) -> Pair:
    """A message that has only these fields of row 1."""
    return '{"id":1}', {"id": 1, **given}


@pytest.mark.parametrize("together", [True, False])
def test_a_json_row_is_whole_by_default_so_a_column_without_a_field_becomes_null(
    tmp_path: Path, together: bool
) -> None:
    replica = Replica(stage(**AS_JSON, left_out="dead_letter"), tmp_path)
    deliver(replica, [partial(**WHOLE), partial(a="z")], together=together)
    assert replica.live == {1: {"id": 1, "a": "z", "b": None, "n": None}}
    assert not replica.dead


@pytest.mark.parametrize(
    ("together", "fold_first", "misfits"),
    [(True, None, "null"), (False, None, "dead_letter"), (True, False, "dead_letter"), (True, True, "null")],
)
def test_keep_keeps_columns_of_any_type_that_a_json_row_does_not_have(
    tmp_path: Path, together: bool, fold_first: bool | None, misfits: str
) -> None:
    replica = Replica(stage(**AS_JSON, fold_first=fold_first, misfits=misfits), tmp_path)
    deliver(replica, [partial(**WHOLE), partial(a="z"), partial(b=None), partial()], together=together)
    assert replica.live == {1: {"id": 1, "a": "z", "b": None, "n": 1}}
    assert not replica.dead


@pytest.mark.parametrize("together", [True, False])
def test_a_json_row_after_a_deletion_keeps_nothing_of_the_deleted_one(tmp_path: Path, together: bool) -> None:
    replica = Replica(stage(**AS_JSON), tmp_path)
    deliver(replica, [partial(**WHOLE), ('{"id":1}', None), partial(a="z")], together=together)
    assert replica.live == {1: {"id": 1, "a": "z", "b": None, "n": None}}


@pytest.mark.parametrize(
    ("format", "event"),
    [
        ("debezium", debezium("u", None, {"id": 1, "a": "z"})),
        ("canal", {"type": "UPDATE", "data": [{"id": "1", "a": "z"}]}),
        ("maxwell", {"type": "update", "data": {"id": 1, "a": "z"}}),
    ],
)
def test_keep_keeps_columns_without_a_field_in_every_format(tmp_path: Path, format: str, event: Value) -> None:
    replica = Replica(stage(format=format), tmp_path)
    whole = {"debezium": debezium("c", None, WHOLE), "canal": {"type": "INSERT", "data": [WHOLE]}}
    deliver(replica, [("1", whole.get(format, {"type": "insert", "data": WHOLE})), ("1", event)], together=False)
    assert replica.live == {1: WHOLE | {"a": "z"}}


def deliver(replica: Replica, pairs: list[Pair], *, together: bool) -> None:
    """The messages in one batch, or each in its own."""
    for first in range(0, len(pairs), len(pairs) if together else 1):
        replica.process(messages(pairs[first:][: len(pairs) if together else 1], first=first))


def test_without_keep_the_table_has_no_kept_column() -> None:
    assert KEPT not in stage(left_out="dead_letter").schema.names
    assert KEPT in stage().schema.names
    with pytest.raises(InvalidOption, match="left_out"):
        stage(left_out="null")


def test_keep_is_refused_with_a_sequence() -> None:
    with pytest.raises(InvalidOption, match="keep needs a row's changes in one queue"):
        stage(sequence=["source.lsn"])
