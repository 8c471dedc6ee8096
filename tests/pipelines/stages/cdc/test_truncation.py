"""A truncation of the source empties the replica: older rows go, newer rows stay, in whatever order they arrive."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.stages.cdc.replica_fixture import SCHEMA, Replica, messages
from tests.pipelines.stages.cdc.test_formats import LSN, canal, debezium, enveloped

from lanemq.model.errors import OrderError
from lanemq.pipelines import DeltaSink, LastState
from lanemq.pipelines.sinks.foreach import ForeachSink
from lanemq.pipelines.stages.cdc.truncation import Bound, drop_older, newer_bound


def stage(**options: Any) -> LastState:
    return LastState(SCHEMA, ["id"], **({"format": "debezium"} | options))


def row(key: int, name: str = "x") -> dict[str, Any]:
    return {"id": key, "name": name, "amount": None}


def put(key: int, name: str = "x", **source: Any) -> tuple[str, Any]:
    return f'{{"id": {key}}}', debezium("c", None, row(key, name), **source)


def truncated(**source: Any) -> tuple[None, Any]:
    return None, debezium("t", None, None, **source)


@pytest.mark.parametrize("envelope", [enveloped, lambda event: event])
@pytest.mark.parametrize("fold_first", [None, False])
def test_older_rows_are_deleted_and_newer_ones_stay(tmp_path: Path, fold_first: bool | None, envelope: Any) -> None:
    replica = Replica(stage(one_queue=True, fold_first=fold_first), tmp_path)
    replica.process(messages([put(1), put(2)]))
    pairs = [put(3), *[put(1, "again")] * 3, truncated(), put(2, "after"), put(4)]
    results = replica.process(messages([(key, envelope(event)) for key, event in pairs], first=2))
    assert {key: found["name"] for key, found in replica.live.items()} == {2: "after", 4: "x"}
    assert (results.outputs.emptied_below, results.counts["truncations"]) == (6, 1)
    assert not replica.dead


def test_a_truncation_alone_empties_the_table(tmp_path: Path) -> None:
    replica = Replica(stage(sequence=LSN), tmp_path)
    replica.process(messages([put(1, lsn=1), put(2, lsn=2)]))
    replica.process(messages([truncated(lsn=3)], first=2))
    assert replica.live == {}


def test_a_truncation_under_the_message_key_of_a_row_is_found(tmp_path: Path) -> None:
    """Folding by message key must not leave it unread because a newer message has its key."""
    event = debezium("t", None, None)
    replica = Replica(stage(one_queue=True), tmp_path)
    replica.process(messages([put(2)]))
    replica.process(messages([put(1), ('{"id": 1}', event), put(1), put(1)], first=1))
    assert set(replica.live) == {1}


def test_only_truncations_of_the_table_count(tmp_path: Path) -> None:
    replica = Replica(stage(one_queue=True, table="shop.people"), tmp_path)
    replica.process(messages([put(1), truncated(table="orders"), truncated(db="other")]))
    assert set(replica.live) == {1}
    replica.process(messages([truncated()], first=3))
    assert replica.live == {}


def test_truncate_of_canal_empties_the_table(tmp_path: Path) -> None:
    replica = Replica(stage(format="canal", one_queue=True), tmp_path)
    replica.process(messages([(None, canal("INSERT", [{"id": "1"}]))]))
    replica.process(messages([(None, canal("TRUNCATE", None, isDdl=True))], first=1))
    assert replica.live == {}


@pytest.mark.parametrize(
    ("options", "event", "sink", "why"),
    [
        ({}, truncated(), DeltaSink("t"), "queue offsets cannot order it"),
        ({"sequence": LSN}, truncated(), DeltaSink("t"), "sequence (source.lsn) is missing"),
        ({"sequence": LSN}, truncated(lsn=5), ForeachSink(lambda *_: None), "the sink cannot delete"),
    ],
)
def test_a_truncation_that_cannot_be_applied_is_a_dead_letter(
    tmp_path: Path, options: Any, event: Any, sink: Any, why: str
) -> None:
    made = stage(**options)
    made.accept_sink(sink)
    replica = Replica(made, tmp_path)
    source = {"lsn": 1} if options else {}
    replica.process(messages([put(1, **source), event]))
    assert set(replica.live) == {1}
    [letter] = replica.dead
    assert why in letter["reason"]


def test_the_same_source_sequence_in_another_queue_is_refused(tmp_path: Path) -> None:
    replica = Replica(stage(sequence=LSN), tmp_path)
    with pytest.raises(OrderError, match="nothing says which came first"):
        replica.process(messages([put(1, lsn=5)]), messages([truncated(lsn=5)], queue=1))


def late(replica: Replica) -> None:
    """A truncation at 5, then a change from before it, out of a slower queue."""
    replica.process(messages([truncated(lsn=5)], queue=1))
    replica.process(messages([put(1, "late", lsn=4), put(2, "after", lsn=6)]))


@pytest.mark.parametrize("restart", [False, True])
def test_a_late_older_change_does_not_come_back(tmp_path: Path, restart: bool) -> None:
    replica = Replica(stage(sequence=LSN), tmp_path)
    if restart:
        replica.process(messages([truncated(lsn=5)], queue=1))
        replica = Replica(stage(sequence=LSN), tmp_path)
        replica.process(messages([put(1, "late", lsn=4), put(2, "after", lsn=6)]))
    else:
        late(replica)
    assert set(replica.live) == {2}


def test_control_without_the_memory_of_truncations_a_late_change_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastState, "continue_from", lambda *_: None)
    replica = Replica(stage(sequence=LSN), tmp_path)
    late(replica)
    assert set(replica.live) == {1, 2}


def test_a_repeated_batch_empties_the_same_rows(tmp_path: Path) -> None:
    """Its state may have been stored before the driver died."""
    replica = Replica(stage(sequence=LSN), tmp_path)
    batch = messages([put(1, lsn=1), truncated(lsn=2), put(3, lsn=3)])
    first = replica.process(batch)
    again = replica.repeat(batch)
    assert first.outputs.emptied_below == again.outputs.emptied_below is not None
    assert set(replica.live) == {3}


Events = list[tuple[str, int, int]]
"""What happened in the source, in order: what, which key, in which queue it is delivered."""
EVENTS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "delete", "truncate"]), st.integers(0, 3), st.integers(0, 1)), max_size=12
)


def rows_of_source(events: Events) -> dict[int, str]:
    rows: dict[int, str] = {}
    for lsn, (what, key, _) in enumerate(events):
        if what == "put":
            rows[key] = str(lsn)
        elif what == "delete":
            rows.pop(key, None)
        else:
            rows.clear()
    return rows


def delivered(events: Events, cuts: Sequence[int]) -> list[list[pa.Table]]:
    """Batches of partitions. Each batch takes some of queue 0 and some of queue 1, whatever the source's order is."""
    queues: list[list[tuple[str | None, Any]]] = [[], []]
    for lsn, (what, key, queue) in enumerate(events):
        if what == "put":
            queues[queue].append(put(key, str(lsn), lsn=lsn))
        elif what == "delete":
            queues[queue].append((f'{{"id": {key}}}', debezium("d", row(key), None, lsn=lsn)))
        else:
            queues[queue].append(truncated(lsn=lsn))
    batches, done = [], [0, 0]
    for cut in [*cuts, 99, 99]:
        queue = len(batches) % 2
        end = min(len(queues[queue]), done[queue] + cut)
        batches.append([messages(queues[queue][done[queue] : end], queue=queue, first=done[queue])])
        done[queue] = end
    return batches


def check_history(events: Events, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replica = Replica(stage(sequence=LSN), Path(folder))
        for partitions in delivered(events, cuts):
            replica.process(*(part for part in partitions if part.num_rows))
        assert {key: found["name"] for key, found in replica.live.items()} == rows_of_source(events)


@settings(max_examples=10)
@given(EVENTS, st.lists(st.integers(0, 4), max_size=5))
def test_the_replica_has_the_rows_of_the_source_after_any_history(events: Events, cuts: list[int]) -> None:
    check_history(events, cuts)


@pytest.mark.extended
@settings(max_examples=200)
@given(EVENTS, st.lists(st.integers(0, 4), max_size=5))
def test_the_replica_has_the_rows_of_the_source_after_many_histories(events: Events, cuts: list[int]) -> None:
    check_history(events, cuts)


def test_the_newest_truncation_counts() -> None:
    bound: Bound = None
    for found in (None, 4, None, 2):
        bound = newer_bound((bound, found))
    rows = pa.table({"_sequence": [1, 3, 4, 5]})
    assert drop_older(rows, bound)["_sequence"].to_pylist() == [5]
    assert drop_older(rows, newer_bound((bound, 5))).num_rows == 0
