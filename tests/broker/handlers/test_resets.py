"""A reset reaches held pulls of the group and queue that it names, and no others."""

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient
from tests.broker.running import ManualClock, RunningBroker

from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.brokering.queue_progress import QueueProgress
from lanemq.model.units import QueueOffset
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.headers import PullResponse

LONG = 25_000
CLAIM = {"laneClient": "member", "laneEpoch": "1"}


@pytest.fixture
def waiting(raw: RawClient) -> RawClient:
    """A topic with three messages and group `g` online."""
    raw.create("T", queues=2)
    for _ in range(3):
        raw.send("T", queue=0)
    raw.heartbeat("member", "g", {"T": "*"})
    return raw


def _reset(broker: RunningBroker, group: str, queue: int = 0, offset: int = 0) -> None:
    where = {"offset": str(offset), "queueId": str(queue)}
    ext = {"topic": "T", "group": group, "timestamp": "-1", "isForce": "true", **where}
    assert broker.connect().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0


def test_a_held_pull_is_answered_with_a_reset_at_once(broker: RunningBroker, waiting: RawClient) -> None:
    pull = waiting.post_pull("T", 3, hold=LONG)
    _reset(broker, "g")
    reply = waiting.answer(pull)
    assert reply.code == ResponseCode.PULL_OFFSET_MOVED
    assert PullResponse.from_ext(reply.ext).next_begin_offset == 0
    assert waiting.pull("T", 0).code == 0  # answered once


@pytest.mark.parametrize(("group", "queue"), [("other", 0), ("g", 1)])
def test_a_reset_of_another_group_or_queue_leaves_a_pull_held(
    broker: RunningBroker, waiting: RawClient, group: str, queue: int
) -> None:
    pull = waiting.post_pull("T", 3, hold=LONG)
    _reset(broker, group, queue)
    waiting.send("T", b"next", queue=0)
    reply = waiting.answer(pull)
    assert (reply.code, PullResponse.from_ext(reply.ext).next_begin_offset) == (ResponseCode.SUCCESS, 4)


def test_a_held_pull_does_not_continue_after_a_reset(broker: RunningBroker, waiting: RawClient) -> None:
    """On an arrival during a reset, the new message would be delivered before the older ones."""
    pull = waiting.post_pull("T", 3, hold=LONG)
    waiting.bounds("T")  # the pull is held by now: requests of a connection are handled in order
    progress = broker.progress("g", "T")
    broker.call(lambda: progress.move(QueueOffset(0), pending=True))
    waiting.send("T", b"next", queue=0)
    assert waiting.answer(pull).code == ResponseCode.PULL_OFFSET_MOVED


def test_a_lost_answer_does_not_undo_a_reset(broker: RunningBroker, waiting: RawClient) -> None:
    """The member never received it, and pulls again from its old offset over a new connection."""
    waiting.post_pull("T", 3, hold=LONG)
    _reset(broker, "g")
    waiting.close()
    again = broker.connect()
    reply = again.pull("T", 3, hold=LONG)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    again.commit(3)
    assert again.committed() == 0
    assert again.pull("T", 0, hold=LONG).code == 0
    again.commit(1)
    assert again.committed() == 1


def pull_of_an_owner_that_lost_the_answer(broker: RunningBroker, owner: RawClient) -> int:
    """An owner with unfinished messages cancels its pull, because it gives the queue up, and then keeps the queue.

    The group was reset to the offset of that pull, which it does not know: the code of the answer to its next pull.
    """
    owner.lane_lock("member")
    owner.commit(1, **CLAIM)
    owner.post_pull("T", 3, hold=LONG, **CLAIM)
    owner.bounds("T")  # the pull is held by now
    _reset(broker, "g", offset=3)
    owner.send("T", b"next", queue=0)
    return owner.pull("T", 3, hold=LONG, **CLAIM).code


def test_an_owner_that_is_at_the_offset_of_a_reset_by_chance_is_answered_until_it_commits_there(
    broker: RunningBroker, waiting: RawClient
) -> None:
    """Otherwise it continues with messages that the reset skips."""
    assert pull_of_an_owner_that_lost_the_answer(broker, waiting) == ResponseCode.PULL_OFFSET_MOVED
    assert "laneIgnored" in waiting.commit(2, **CLAIM).ext
    assert "laneIgnored" not in waiting.commit(3, **CLAIM).ext
    assert waiting.pull("T", 3, hold=LONG, **CLAIM).code == ResponseCode.SUCCESS


def test_a_reset_that_ends_with_a_pull_from_its_offset_is_not_obeyed(
    broker: RunningBroker, waiting: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    real = QueueProgress.moved_to
    monkeypatch.setattr(QueueProgress, "moved_to", lambda *args, **more: real(*args, **more | {"commits": False}))
    assert pull_of_an_owner_that_lost_the_answer(broker, waiting) == ResponseCode.SUCCESS


def test_the_answer_to_a_commit_ignored_because_of_a_reset_says_so(broker: RunningBroker, waiting: RawClient) -> None:
    """Otherwise the member would record an offset that the group does not have."""
    waiting.lane_lock("member")
    assert "laneIgnored" not in waiting.commit(2, **CLAIM).ext
    _reset(broker, "g")
    void, stock = waiting.commit(3, **CLAIM), waiting.commit(3)
    assert (void.code, void.ext["laneIgnored"]) == (0, "a reset waits for the group's next pull")
    assert (stock.code, stock.ext) == (0, {})
    assert waiting.committed() == 0


@pytest.mark.parametrize("queue", [2, 1_000_000])
def test_reset_of_a_queue_that_does_not_exist_is_refused(broker: RunningBroker, waiting: RawClient, queue: int) -> None:
    ext = {"topic": "T", "group": "g", "timestamp": "-1", "offset": "0", "queueId": str(queue), "isForce": "true"}
    reply = waiting.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "it has 2" in (reply.remark or "")
    assert waiting.committed(queue=queue) is None


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    return start(clock=ManualClock())


def commit_of_an_owner_that_was_away(clocked: RunningBroker) -> tuple[dict[str, str], int | None]:
    """An owner is cut off until its lease has expired; the group is reset; then it comes back and commits.

    The answer to its commit, and the group's offset.
    """
    raw = clocked.connect()
    raw.create("T", queues=1)
    for _ in range(5):
        raw.send("T", queue=0)
    epoch = raw.lane_lock("a").lane_leases[0].epoch
    clocked.run_for(6_000)
    _reset(clocked, "g")
    answer = raw.commit(3, laneEpoch=str(epoch), laneClient="a")
    assert answer.code == 0
    return answer.ext, raw.committed()


def test_an_owner_that_was_away_does_not_undo_a_reset(clocked: RunningBroker) -> None:
    """No other member was granted the queue, so it is still its owner."""
    assert commit_of_an_owner_that_was_away(clocked) == ({"laneIgnored": "a reset waits for the group's next pull"}, 0)


def test_a_reset_that_forgets_owners_that_are_away_is_undone(
    clocked: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(LockTable, "has_owner", lambda self, group: False)
    assert commit_of_an_owner_that_was_away(clocked)[1] == 3
