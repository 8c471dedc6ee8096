"""The newest row of each key, and batches whose order cannot be known."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.stages.cdc.replica_fixture import SCHEMA, Replica, Value, messages
from tests.pipelines.stages.cdc.test_formats import LSN, canal, debezium

from lanemq.model.errors import InvalidOption, OrderError
from lanemq.pipelines import LastState
from lanemq.pipelines.stages.cdc.fold import newest

MOVE = debezium("u", {"id": 1}, {"id": 2}, lsn=5)


def event(key: int, name: str, lsn: int) -> tuple[str | None, Value]:
    return f'{{"id": {key}}}', debezium("u", None, {"id": key, "name": name}, lsn=lsn)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 5)), max_size=20))
def test_the_newest_is_the_last_of_the_highest_sequence(rows: list[tuple[int, str, int]]) -> None:
    expected: dict[tuple[int, str], tuple[int, int]] = {}
    for index, (number, text, sequence) in enumerate(rows):
        expected[number, text] = max(expected.get((number, text), (-1, -1)), (sequence, index))
    table = pa.Table.from_pylist(
        [{"number": number, "text": text, "_sequence": sequence} for number, text, sequence in rows],
        pa.schema([("number", pa.int64()), ("text", pa.string()), ("_sequence", pa.int64())]),
    )
    assert newest(table, ["number", "text"]).to_pylist() == sorted(index for _, index in expected.values())


def test_the_source_sequence_decides_between_queues(tmp_path: Path) -> None:
    """Offsets would give the opposite: the older change has the higher offset."""
    replica = Replica(LastState(SCHEMA, ["id"], format="debezium", sequence=LSN), tmp_path)
    replica.process(messages([event(1, "old", 3)], first=900), messages([event(1, "new", 8)], queue=1))
    assert replica.live[1]["name"] == "new"


def test_the_source_sequence_decides_between_batches(tmp_path: Path) -> None:
    """A slow queue delivers its older change, and its older deletion, a batch later."""
    replica = Replica(LastState(SCHEMA, ["id"], format="debezium", sequence=LSN), tmp_path)
    replica.process(messages([event(1, "new", 8)], queue=1))
    replica.process(messages([event(1, "old", 3), ('{"id": 1}', debezium("d", {"id": 1}, None, lsn=4))], first=900))
    assert replica.live[1]["name"] == "new"


@pytest.mark.parametrize("options", [{"format": "debezium"}, {"format": "debezium", "sequence": LSN}])
def test_queues_that_disagree_about_a_row_end_the_query(tmp_path: Path, options: Any) -> None:
    """Nothing says which change is newer."""
    replica = Replica(LastState(SCHEMA, ["id"], **options), tmp_path)
    way_out = "more parts in sequence=" if "sequence" in options else "a position of the source"
    with pytest.raises(OrderError, match=rf"id=1 was changed in queue t/b/0 and in queue t/b/1.*offset 0.*{way_out}"):
        replica.process(messages([event(1, "this", 3)]), messages([event(1, "that", 3)], queue=1))


@pytest.mark.parametrize("together", [True, False])
def test_a_row_in_two_queues_ends_the_query_in_one_batch_and_in_two(tmp_path: Path, together: bool) -> None:
    """Without a sequence only offsets are known. The lower offset would be dropped as stale, also if it is newer."""
    replica = Replica(LastState(SCHEMA, ["id"], on_queue_change="continue"), tmp_path)
    first = messages([("a", {"id": 1, "amount": 9})], first=50)
    second = messages([("b", {"id": 1, "amount": 777})], queue=1)
    if not together:
        replica.process(first)
    last = (first, second) if together else (second,)
    with pytest.raises(OrderError, match=r"the row id=1 was changed in queue t/b/. and in queue t/b/., and nothing"):
        replica.process(*last)


def test_rows_name_their_queue_unless_there_is_only_one(tmp_path: Path) -> None:
    assert "_queue" in LastState(SCHEMA, ["id"]).schema.names
    assert "_queue" in LastState(SCHEMA, ["id"], sequence=["amount"]).schema.names
    assert "_queue" not in LastState(SCHEMA, ["id"], one_queue=True).schema.names


def test_the_same_row_in_two_queues_is_accepted(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"], format="debezium", sequence=LSN), tmp_path)
    replica.process(messages([event(1, "same", 3)]), messages([event(1, "same", 3)], queue=1))
    assert replica.live[1]["name"] == "same"


def test_a_queue_may_be_read_by_several_tasks(tmp_path: Path) -> None:
    """As with `ordered=false`; offsets order the parts of a queue."""
    replica = Replica(LastState(SCHEMA, ["id"], format="debezium"), tmp_path)
    replica.process(messages([event(1, "new", 0)], first=50), messages([event(1, "old", 0)]))
    assert replica.live[1]["name"] == "new"


def test_a_change_of_key_without_a_sequence_is_refused(tmp_path: Path) -> None:
    """The deletion of the old row would be compared by offset with changes in another queue."""
    replica = Replica(LastState(SCHEMA, ["id"], format="debezium"), tmp_path)
    with pytest.raises(OrderError, match="declare a sequence of the source"):
        replica.process(messages([("k", MOVE)]))


def test_in_one_queue_offsets_order_changes_of_keys_too(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"], format="canal", one_queue=True), tmp_path)
    replica.process(messages([("k", canal("UPDATE", [{"id": "2"}], [{"id": "1"}]))]))
    assert (set(replica.live), replica.tombstones()) == ({2}, {1})


def test_a_second_queue_is_refused_with_one_queue(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"], format="canal", one_queue=True), tmp_path)
    row = ("k", canal("INSERT", [{"id": "2"}]))
    with pytest.raises(OrderError, match="one_queue was promised"):
        replica.process(messages([row]), messages([row], queue=1))


def test_a_second_queue_in_a_later_batch_is_refused_with_one_queue(tmp_path: Path) -> None:
    """Its offsets would be compared with those of the first: the change would be lost, or replace a newer one."""
    replica = Replica(LastState(SCHEMA, ["id"], format="canal", one_queue=True), tmp_path)
    row = ("k", canal("INSERT", [{"id": "2"}]))
    replica.process(messages([row], first=5))
    again = Replica(LastState(SCHEMA, ["id"], format="canal", one_queue=True), tmp_path)
    for some in (replica, again):
        with pytest.raises(OrderError, match="one_queue was promised, but there are or were messages of t/b/0, t/b/1"):
            some.process(messages([row], queue=1))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"keys": ["absent"]}, "keys"),
        ({"keys": []}, "keys"),
        ({"keys": ["amount"]}, "cannot be compared exactly"),
        ({"schema": "id bigint, _sequence bigint"}, "_sequence"),
        ({"schema": "id bigint, id string"}, "exists already"),
        ({"format": "avro"}, "format"),
        ({"misfits": "ignore"}, "misfits"),
        ({"on_poison": "skip"}, "on_poison"),
        ({"time_unit": "minutes"}, "time_unit"),
        ({"time_unit": {"id": "minutes"}}, "time_unit: 'minutes'"),
        ({"time_unit": {"nothing": "ms"}}, "time_unit: there is no column nothing"),
        ({"decimals": "precise"}, "decimals"),
        ({"format": "canal", "fold_first": True}, "several rows"),
        ({"table": "shop.people"}, "do not name their table"),
        ({"format": "debezium", "deleted": "gone"}, "deleted"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_runs(options: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        LastState(**{"schema": SCHEMA, "keys": ["id"]} | options)
