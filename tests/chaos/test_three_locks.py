"""A queue is taken over while its handler runs: three locks prevent it, and without any one of them order breaks.

The story is always the same. Member `a` has fetched messages 0 to 4 of a key and is slow with the first; `b` joins
and the queue is to become its own; messages 5 to 9 are sent. Nothing of the key may start before its predecessor
has ended, in whatever member it runs.
"""

import pytest
from tests.chaos.members import BlockingHandler, LocalGroup, key_in, owns, until
from tests.chaos.mutants import MUTANTS
from tests.chaos.system import complaint

from lanemq.checker.verdict import Report, Verdict
from lanemq.client.consumer.app import App
from lanemq.core.brokering.lock_table import LockGrant, LockTable

KEY = key_in(3)
"""Queue 3 of 4 belongs to the second of two members."""
REFUSALS = 3


def newcomer_while_a_handler_runs(group: LocalGroup, patch: pytest.MonkeyPatch) -> tuple[Report, BlockingHandler]:
    """Blocks a handler until `b` was refused several times, or order is broken."""
    refused = count_refusals(patch)
    blocking = BlockingHandler(KEY)
    for number in range(5):
        group.producer.send("orders", number, key=KEY)
    a = group.member("a", blocking.of("a"))
    until("a is inside", blocking.inside.is_set)
    until("a has all five", lambda: cached(a) == 5 or blocking.overlapping)
    b = group.member("b", blocking.of("b"))
    for number in range(5, 10):
        group.producer.send("orders", number, key=KEY)
    until("a gives the queue up, or order is broken", lambda: draining(a) or blocking.overlapping)
    before = refused.count("b")
    until("b waits, or order is broken", lambda: refused.count("b") >= before + REFUSALS or blocking.overlapping)
    blocking.released.set()
    until("all are done", lambda: {offset for _, key, offset in group.done if key == KEY} == set(range(10)))
    until("b has the queue", lambda: owns(b, 3))
    return group.judge("rebalance"), blocking


def draining(app: App) -> bool:
    return any(held.lanes.draining for held in app.snapshot().queues.values())


def cached(app: App) -> int:
    return sum(held.lanes.cached.count for held in app.snapshot().queues.values())


def count_refusals(patch: pytest.MonkeyPatch) -> list[str]:
    refused: list[str] = []
    real = LockTable.acquire

    def acquire(self: LockTable, group: str, queues: object, owner: str, **named: object) -> LockGrant:
        grant = real(self, group, queues, owner, **named)  # type: ignore[arg-type]
        refused.extend(owner for each in grant.refused if each.queue.topic == "orders")
        return grant

    patch.setattr(LockTable, "acquire", acquire)
    return refused


@pytest.mark.row("A12")
@pytest.mark.row("A83")
@pytest.mark.row("A84")
@pytest.mark.row("A89")
@pytest.mark.row("A90")
def test_a_newcomer_starts_nothing_before_the_old_owner_has_ended(
    group: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the handler takes. Other queues are taken over in the meantime."""
    report, blocking = newcomer_while_a_handler_runs(group, monkeypatch)
    assert [offset for _, offset in blocking.began] == list(range(10))
    assert [offset for _, key, offset in group.done if key == KEY] == list(range(10))
    assert not blocking.overlapping
    assert blocking.began[0] == ("a", 0)
    assert blocking.began[-1][0] == "b"
    assert report.verdict is Verdict.PASS, complaint(report)
    assert report.coverage["zombie_turns"] == 0


@pytest.mark.row("A83")
@pytest.mark.parametrize(
    ("lock", "enemy"),
    [("broker_lock", "another member"), ("lane_lock", "another thread"), ("drain", "a rebalance in the middle")],
)
def test_without_any_one_of_the_three_locks_the_order_breaks(
    group: LocalGroup, monkeypatch: pytest.MonkeyPatch, lock: str, enemy: str
) -> None:
    """Negative controls: each lock prevents something that the other two do not."""
    MUTANTS[lock](monkeypatch.setattr)
    report, blocking = newcomer_while_a_handler_runs(group, monkeypatch)
    assert blocking.overlapping, f"{enemy} was to come in"
    assert blocking.overlapping[0][0] == ("a" if lock == "lane_lock" else "b")
    # A member that released its queue throws the result of the overlapped turn away, so the checker only counts it.
    assert "B5" in report.counts or report.coverage["zombie_turns"], complaint(report)
