"""Random histories of numbered keys in two queues: every number is applied once, in whatever order queues are read.

Queues are cut into batches at random, messages are repeated, some never succeed and are skipped, and states expire in
long silences. The rows of a key must not depend on any of this.
"""

import json
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.pipelines import DeadLetter, Event, StateLimits, Transitions
from lanemq.pipelines.stages.transitions.machine import ShardMachine
from lanemq.pipelines.stages.transitions.messages import QueueSlice
from lanemq.pipelines.stages.transitions.shard import Shard

SPAN = 1_000


class History(NamedTuple):
    first: int
    """The number that keys begin with."""
    events: list[tuple[int, int, bool]]
    """Queue, key, and whether it fails, in the order in which they happened."""
    repeats: list[tuple[int, int]]
    """Repeats as (event, queue), sent after everything else."""
    cuts: list[tuple[int, int, int]]
    """Messages of each queue in the next batch, and the silence before it."""


histories = st.builds(
    History,
    st.sampled_from([-3, 0, 1]),
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 1), st.sampled_from([False, False, False, True])), max_size=12
    ),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 1)), max_size=4),
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0, 1, SPAN, 20 * SPAN])),
        min_size=1,
        max_size=8,
    ),
)


def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if event.value["fails"]:
        raise ValueError("never")
    return (state or 0) + 1, [{"key": event.key, "n": event.value["n"]}]


def queues_of(history: History) -> tuple[list[list[tuple[str, bytes]]], dict[str, list[int]]]:
    """The messages of each queue, and the numbers that each key's rows must have."""
    queues: list[list[tuple[str, bytes]]] = [[], []]
    right: dict[str, list[int]] = {"key-0": [], "key-1": []}
    sent: list[tuple[str, bytes]] = []
    following = {name: history.first for name in right}
    for queue, key, fails in history.events:
        name = f"key-{key}"
        sent.append((name, json.dumps({"n": following[name], "fails": fails}).encode()))
        queues[queue].append(sent[-1])
        right[name] += [] if fails else [following[name]]
        following[name] += 1
    for which, queue in history.repeats:
        if which < len(sent):
            queues[queue].append(sent[which])
    return queues, right


@settings(max_examples=150, deadline=None)
@given(histories)
def test_every_number_is_applied_once_in_whatever_order_queues_are_read(history: History) -> None:
    limits = StateLimits(expire_after=SPAN / 1000)
    stage = Transitions(
        step=step, outputs="key string, n long", sequence="n", first_number=history.first, shards=1,
        on_failure=DeadLetter(skip=True), limits=limits,
    )  # fmt: skip
    queues, right = queues_of(history)
    shard, rules, stored, at = Shard(), stage._options.rules(), 1_000_000, [0, 0]
    rows: list[tuple[Any, ...]] = []
    dead = 0
    for *counts, silence in [*history.cuts, (len(queues[0]), len(queues[1]), 0)]:
        stored += silence
        machine = ShardMachine(shard, rules, stored)
        for queue, count in enumerate(counts):
            part = queues[queue][at[queue] : at[queue] + count]
            if part:
                machine.take(_slice(queue, at[queue], part, stored))
            at[queue] += len(part)
        machine.finish()
        rows += machine.table.outputs
        dead += len(machine.held.dead)
    assert {key: [n for name, n in rows if name == key] for key in right} == right
    assert dead == sum(fails for _, _, fails in history.events)
    assert shard.meta.waiting == {}


def _slice(queue: int, first: int, part: list[tuple[str, bytes]], stored: int) -> QueueSlice:
    count = len(part)
    keys, values = ([each[at] for each in part] for at in (0, 1))
    offsets = list(range(first, first + count))
    nothing: list[str | None] = [None] * count
    return QueueSlice("t", "b", queue, offsets, keys, values, nothing, [stored] * count, nothing)  # type: ignore[arg-type]
