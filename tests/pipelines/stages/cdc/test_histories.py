"""The replica ends equal to its source, however changes are divided into queues and batches."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.pipelines.stages.cdc.replica_fixture import SCHEMA, Replica, Value, messages
from tests.pipelines.stages.cdc.test_formats import canal, debezium

from lanemq.model.errors import OrderError
from lanemq.pipelines import LastState

Pair = tuple[str | None, Value]
QUEUES = 3


class Source:
    """A table under random changes; each is recorded as (key, old key, row or None)."""

    def __init__(self, dice: random.Random, changes: int, *, moves: bool) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.log: list[tuple[int, int | None, dict[str, Any] | None]] = []
        for number in range(changes):
            key, other = dice.randrange(5), dice.randrange(5)
            row = {"id": key, "name": f"change {number}", "amount": float(number)}
            if moves and key in self.rows and other not in self.rows and dice.random() < 0.4:
                del self.rows[key]
                self.rows[other] = row | {"id": other}
                self.log.append((other, key, self.rows[other]))
            elif key in self.rows and dice.random() < 0.3:
                del self.rows[key]
                self.log.append((key, None, None))
            else:
                self.rows[key] = row
                self.log.append((key, None, row))


def replicated(stage: LastState, queues: list[list[Pair]], dice: random.Random) -> dict[Any, Any]:
    """Runs random batches over the queues; some are repeated, and old ones are merged again."""
    with tempfile.TemporaryDirectory() as folder:
        replica = Replica(stage, Path(folder))
        places = [0] * len(queues)
        done = []
        while any(place < len(queue) for place, queue in zip(places, queues, strict=True)):
            parts = []
            for number, queue in enumerate(queues):
                count = dice.choice((0, 1, 3, 20))
                parts.append(messages(queue[places[number] :][:count], queue=number, first=places[number]))
                places[number] += min(count, len(queue) - places[number])
            done.append(replica.process(*parts))
            if dice.random() < 0.3:
                replica.repeat(*parts)
            if dice.random() < 0.2:
                replica.merge(dice.choice(done))
        assert not replica.dead
        return replica.live


def with_repeats(pairs: list[Pair], dice: random.Random) -> list[Pair]:
    """The messages with repeats, as a producer without stamps sends unacknowledged messages again."""
    out: list[Pair] = []
    for pair in pairs:
        out.append(pair)
        if dice.random() < 0.15:
            out += out[-dice.randint(1, 3) :]
    return out


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), fold_first=st.sampled_from([None, True, False]))
def test_rows_by_offsets_follow_the_source(seed: int, fold_first: bool | None) -> None:
    dice = random.Random(seed)
    source, queues = Source(dice, 25, moves=False), [list[Pair]() for _ in range(QUEUES)]
    named = dice.random() < 0.5
    for key, _, row in source.log:
        queues[key % QUEUES].append((f'{{"id": {key}}}' if named else str(key), row))
    stage = LastState(SCHEMA, ["id"], fold_first=fold_first)
    assert replicated(stage, [with_repeats(queue, dice) for queue in queues], dice) == source.rows


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), fold_first=st.sampled_from([None, False]))
def test_debezium_by_offsets_follows_the_source(seed: int, fold_first: bool | None) -> None:
    """Changes of keys are deletion, tombstone and creation, each under its own message key."""
    dice = random.Random(seed)
    source, queues = Source(dice, 25, moves=True), [list[Pair]() for _ in range(QUEUES)]

    def send(key: int, event: Value) -> None:
        queues[key % QUEUES].append((f'{{"id": {key}}}', event))

    for key, old, row in source.log:
        gone = key if row is None else old
        if gone is not None:
            send(gone, debezium("d", {"id": gone}, None))
            send(gone, None)
        if row is not None:
            send(key, debezium("u", None, row))
    stage = LastState(SCHEMA, ["id"], format="debezium", fold_first=fold_first)
    assert replicated(stage, [with_repeats(queue, dice) for queue in queues], dice) == source.rows


def single_updates(source: Source, dice: random.Random) -> list[Pair]:
    """Changes of keys as one update under the new key; `before` is null, the key, or the whole row."""
    pairs: list[Pair] = []
    for key, old, row in source.log:
        same = dice.choice((None, {"id": key}, {"id": key, "name": "before", "amount": 0.5}))
        before = {"id": old} if old is not None else same if row is not None else {"id": key}
        pairs.append((f'{{"id":{key}}}', debezium("d" if row is None else "u", before, row)))
    return [(key, value if dice.random() < 0.5 else compact(value)) for key, value in pairs]


def compact(value: Value) -> bytes:
    """JSON as Debezium's converters write it: without spaces, and with `before` first."""
    assert isinstance(value, dict)
    return json.dumps({"before": value["before"], "after": value["after"], **value}, separators=(",", ":")).encode()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), fold_first=st.sampled_from([None, False]))
def test_keys_changed_by_single_updates_in_one_queue_follow_the_source(seed: int, fold_first: bool | None) -> None:
    """Only one message of the new key, followed by others, says that the old row was deleted."""
    dice = random.Random(seed)
    source = Source(dice, dice.choice((10, 40)), moves=True)
    stage = LastState(SCHEMA, ["id"], format="debezium", one_queue=True, fold_first=fold_first)
    assert replicated(stage, [single_updates(source, dice)], dice) == source.rows


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), fold_first=st.sampled_from([None, False]))
def test_a_key_changed_by_a_single_update_in_several_queues_is_always_refused(
    seed: int, fold_first: bool | None
) -> None:
    dice = random.Random(seed)
    source, queues = Source(dice, 25, moves=True), [list[Pair]() for _ in range(QUEUES)]
    assume(any(old is not None for _, old, _ in source.log))
    for (key, _, _), pair in zip(source.log, single_updates(source, dice), strict=True):
        queues[key % QUEUES].append(pair)
    with pytest.raises(OrderError, match="changes of a row's key"):
        replicated(LastState(SCHEMA, ["id"], format="debezium", fold_first=fold_first), queues, dice)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_debezium_by_its_own_sequence_follows_the_source_through_any_queue(seed: int) -> None:
    """Messages without a key in random queues, ordered only by log position; changes of keys are single updates."""
    dice = random.Random(seed)
    source, queues = Source(dice, 25, moves=True), [list[Pair]() for _ in range(QUEUES)]
    for number, (key, old, row) in enumerate(source.log):
        place = {"file": f"bin.{number // 10}", "pos": number % 10}
        before = {"id": key} if row is None else {"id": old} if old is not None else None
        dice.choice(queues).append((None, debezium("d" if row is None else "u", before, row, **place)))
    for queue in queues:
        dice.shuffle(queue)
    stage = LastState(SCHEMA, ["id"], format="debezium", sequence=("source.file:file", "source.pos"))
    assert replicated(stage, [with_repeats(queue, dice) for queue in queues], dice) == source.rows


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_canal_in_one_queue_follows_the_source(seed: int) -> None:
    """Several rows per message, with changes of keys, ordered by offset and position in the message."""
    dice = random.Random(seed)
    source, queue = Source(dice, 25, moves=True), list[Pair]()
    log = list(source.log)
    while log:
        gone = log[0][2] is None
        count = next((place for place, entry in enumerate(log) if (entry[2] is None) != gone), len(log))
        some, log = log[: min(count, 3)], log[min(count, 3) :]
        data = [{name: str(value) for name, value in (row or {"id": key}).items()} for key, _, row in some]
        former: list[Any] = [{"id": str(old)} if old is not None else {"name": "?"} for _, old, _ in some]
        queue.append(("k", canal("DELETE" if gone else "UPDATE", data, None if gone else former)))
    assert replicated(LastState(SCHEMA, ["id"], format="canal", one_queue=True), [queue], dice) == source.rows
