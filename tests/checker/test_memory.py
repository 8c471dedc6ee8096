"""Memory follows what is unfinished, not how long the history is."""

from collections.abc import Iterator

from lanemq.checker import events as e
from lanemq.checker.checking import Checker
from lanemq.checker.verdict import Verdict

PRODUCER = e.Process("p", e.Role.PRODUCER)
MEMBER = e.Process("a", e.Role.CONSUMER)


def run(messages: int, *, every: int, keys: int) -> Iterator[e.HistoryEvent]:
    """A correct run in which each key is used for a while and then never again."""
    for i in range(messages):
        key, id, t = f"k{i * keys // messages}", f"m{i}", i * 100
        place = {"group": "g", "topic": "orders", "queue": 0}
        yield e.Send(n=0, t=t, process=PRODUCER, topic="orders", key=key, id=id)
        yield e.Acked(n=0, t=t + 1, process=PRODUCER, topic="orders", queue=0, offset=i, id=id, key=key)
        yield e.Turn(n=0, t=t + 2, process=MEMBER, offset=i, key=key, id=id, **place)
        yield e.TurnEnd(n=0, t=t + 3, process=MEMBER, offset=i, key=key, outcome=e.Outcome.OK, **place)
        if i % every == every - 1:
            yield e.OffsetCommitted(n=0, t=t + 4, process=MEMBER, offset=i + 1, **place)


def test_messages_that_every_group_committed_past_are_forgotten() -> None:
    checker = Checker()
    checker.feed(run(5000, every=10, keys=500))
    state = checker._state
    progress = state.groups[("g", "orders", "lanemq", 0)]
    sizes = [
        progress.started,
        progress.finished,
        progress.lanes,
        progress.queue.stored,
        progress.queue.offsets,
        state.senders,
    ]
    assert all(len(size) <= 1 for size in sizes), [len(size) for size in sizes]
    assert not any(state.sent.values())
    assert checker.finish().verdict is Verdict.PASS


def test_busy_lane_that_never_ends_stays_short() -> None:
    checker = Checker()
    checker.feed(run(5000, every=7, keys=1))
    progress = checker._state.groups[("g", "orders", "lanemq", 0)]
    assert all(len(lane.offsets) < 100 for lane in progress.lanes.values())
    assert all(len(sender.stored) < 100 for sender in checker._state.senders.values())


def pipelined(messages: int, window: int) -> Iterator[e.HistoryEvent]:
    """One key, always `window` sends under way; the first of all is never answered."""
    for i in range(messages):
        yield e.Send(n=0, t=i * 10, process=PRODUCER, topic="orders", key="k", id=f"m{i}")
        if i > window:
            done = i - window
            yield e.Acked(
                n=0,
                t=i * 10 + 1,
                process=PRODUCER,
                topic="orders",
                queue=0,
                offset=done,
                id=f"m{done}",
                key="k",
            )


def test_offsets_that_an_open_send_can_be_compared_with_are_kept() -> None:
    checker = Checker()
    checker.feed(pipelined(300, 10))
    late = e.Acked(n=0, t=9000, process=PRODUCER, topic="orders", queue=0, offset=1000, id="m0", key="k")
    checker.feed([late])
    assert checker.finish().violations[0].invariant == "B1"


def test_offsets_before_the_oldest_open_send_are_forgotten() -> None:
    checker = Checker()
    history = list(pipelined(2000, 10))
    answer = e.Acked(n=0, t=0, process=PRODUCER, topic="orders", queue=0, offset=0, id="m0", key="k")
    checker.feed([history[0], answer, *history[1:]])
    (sender,) = checker._state.senders.values()
    assert len(sender.stored) < 100
    assert not checker.finish().violations


def test_messages_that_a_slow_group_has_not_committed_are_kept() -> None:
    """Otherwise a message that the slow group loses would go unnoticed."""
    checker = Checker()
    place = {"group": "slow", "topic": "orders", "queue": 0}
    checker.feed([e.Reset(n=0, t=0, process=MEMBER, offset=0, **place)])
    checker.feed(run(100, every=10, keys=5))
    assert len(checker._state.queues[("orders", "lanemq", 0)].stored) == 100
    checker.feed([e.OffsetCommitted(n=0, t=10**6, process=MEMBER, offset=100, **place)])
    assert checker.finish().violations[0].invariant == "S1"
