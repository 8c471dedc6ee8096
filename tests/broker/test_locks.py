"""Queue locks over the wire: stock leases, lane leases, epochs through restarts, and who is refused."""

from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.running import Gate, HandClock, Running
from tests.broker.talk import BROKER, Talk, lock_body

from lanemq.wire.bodies import LockRequest, LockResponse, QueueBody
from lanemq.wire.codes import RequestCode, ResponseCode

STOCK_LEASE = 60_000


@pytest.fixture
def hand(start: Start) -> Running:
    running = start(clock=HandClock())
    running.talk().create("T", 4)
    return running


def owned(response: LockResponse) -> list[int]:
    return [queue.queue_id for queue in response.lock_ok_mq_set]


@pytest.mark.row("A33")
@pytest.mark.row("A37")
@pytest.mark.row("A40")
def test_partial_grant_is_a_success(hand: Running) -> None:
    talk = hand.talk()
    assert owned(talk.lock("a", queues=(0, 1))) == [0, 1]
    assert owned(talk.lock("b", queues=(1, 2))) == [2]
    assert owned(talk.lock("b", queues=(0,))) == []


@pytest.mark.row("A34")
def test_groups_lock_independently(hand: Running) -> None:
    talk = hand.talk()
    assert owned(talk.lock("a", group="g1")) == owned(talk.lock("b", group="g2")) == [0]


@pytest.mark.row("A38")
@pytest.mark.row("A39")
@pytest.mark.row("A41")
def test_stock_lock_lives_sixty_seconds_from_its_last_renewal(hand: Running) -> None:
    talk = hand.talk()
    talk.lock("a")
    hand.advance(40_000)
    talk.lock("a")
    hand.advance(STOCK_LEASE - 1)
    assert owned(talk.lock("b")) == []
    hand.advance(1)
    assert owned(talk.lock("b")) == [0]
    assert owned(talk.lock("a")) == []


def test_stock_answer_carries_nothing_of_ours(hand: Running) -> None:
    reply = hand.talk().ask(RequestCode.LOCK_BATCH_MQ, body=lock_body("a", "T", (0,), "g"))
    assert b"lane" not in reply.body.replace(b'"lanemq"', b"")


def test_lane_answer_carries_epoch_offset_and_holder(hand: Running) -> None:
    talk = hand.talk()
    talk.commit(7)
    granted = talk.lane_lock("a", millis=3_000)
    (lease,) = granted.lane_leases
    assert (lease.epoch, lease.offset, lease.lease_millis) == (1, 7, 3_000)
    (refusal,) = talk.lane_lock("b").lane_refused
    assert (refusal.holder, refusal.remaining_millis) == ("a", 3_000)


def test_epoch_grows_with_every_owner_and_stays_on_renewal(hand: Running) -> None:
    talk = hand.talk()
    epochs = [talk.lane_lock("a").lane_leases[0].epoch for _ in range(2)]
    talk.unlock("a")
    epochs += [talk.lane_lock("b").lane_leases[0].epoch]
    assert epochs == [1, 1, 2]


@pytest.mark.row("A55")
def test_unlock_frees_the_queue_at_once(hand: Running) -> None:
    talk = hand.talk()
    talk.lock("a")
    assert talk.unlock("b").code == 0
    assert owned(talk.lock("b")) == [], "only the owner's unlock counts"
    talk.unlock("a")
    assert owned(talk.lock("b")) == [0]


def test_unlock_with_an_old_epoch_does_nothing(hand: Running) -> None:
    talk = hand.talk()
    talk.lane_lock("a")
    talk.unlock("a", laneEpoch="1")
    talk.lane_lock("a")
    talk.unlock("a", laneEpoch="1")
    assert owned(talk.lock("b")) == []
    talk.unlock("a", laneEpoch="2")
    assert owned(talk.lock("b")) == [0]


def test_grant_and_its_renewal_are_answered_after_they_are_on_disk(broker: Running) -> None:
    """A renewal names the same epoch: answered early, it gives out what a crash could give out again."""
    talk = broker.talk()
    talk.create("T")
    gate = Gate(broker)
    grant = talk.post(RequestCode.LOCK_BATCH_MQ, {"laneLeaseMillis": "5000"}, lock_body("a", "T", (0,), "g"))
    renewal = talk.post(RequestCode.LOCK_BATCH_MQ, {"laneLeaseMillis": "5000"}, lock_body("a", "T", (0,), "g"))
    talk.bounds("T")
    assert not {grant, renewal} & set(talk.answered())
    gate.open()
    assert talk.answer(grant).code == talk.answer(renewal).code == 0
    gate = Gate(broker)
    assert talk.lane_lock("a").lane_leases, "a plain renewal waits for no disk"
    release = talk.post(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("a", "T", (0,), "g"))
    talk.bounds("T")
    assert release not in talk.answered()
    gate.open()
    assert talk.answer(release).code == 0


@pytest.mark.parametrize("crash", [False, True])
def test_epoch_once_answered_is_never_given_out_again(start: Start, folder: Path, crash: bool) -> None:
    running = start(clock=HandClock())
    talk = running.talk()
    talk.create("T")
    for owner in ("a", "b", "c"):
        last = talk.lane_lock(owner).lane_leases[0].epoch
        talk.unlock(owner)
    after = again(running, start, folder, crash)
    assert after.talk().lane_lock("d").lane_leases[0].epoch == last + 1


@pytest.mark.parametrize("crash", [False, True])
def test_restored_lease_holds_off_the_first_asker(start: Start, folder: Path, crash: bool) -> None:
    """Its owner may still be working, and could not renew while the broker was away."""
    running = start(clock=HandClock())
    running.talk().create("T")
    running.talk().lane_lock("a", millis=4_000)
    after = again(running, start, folder, crash)
    talk = after.talk()
    assert owned(talk.lane_lock("b")) == []
    assert talk.lane_lock("a", millis=4_000).lane_leases[0].epoch == 1, "and its owner goes on"
    after.advance(4_000)
    assert owned(talk.lane_lock("b")) == [0]


def again(running: Running, start: Start, folder: Path, crash: bool) -> Running:
    if crash:
        return start(running.crash_image(folder / "image"), clock=running.clock)
    running.restart()
    return running


def test_lane_lease_ends_soon_after_its_connection(hand: Running) -> None:
    owner, other = hand.talk(), hand.talk()
    owner.heartbeat("a", topics={"T": "*"})
    owner.lane_lock("a", millis=30_000, laneKeepAliveMillis="400")
    gone(hand, owner)
    assert owned(other.lane_lock("b")) == [], "it may reconnect within the grace"
    hand.advance(500)
    assert owned(other.lane_lock("b")) == [0]


@pytest.mark.parametrize(
    ("lease", "told", "waits"),
    [
        (30_000, {"laneKeepAliveMillis": "800"}, 900),
        (30_000, {"laneKeepAliveMillis": "-1"}, 500),
        (5_000, {}, 3_375),  # a member of an earlier version, with its usual times
        (4_000, {}, 4_000),  # and one with times of its own
    ],
)
def test_lane_lease_outlives_its_connection_until_its_owner_starts_nothing_more(
    hand: Running, lease: int, told: dict[str, str], waits: int
) -> None:
    """It may not have heard that the connection is lost."""
    owner, other = hand.talk(), hand.talk()
    owner.heartbeat("a", topics={"T": "*"})
    owner.lane_lock("a", millis=lease, **told)
    gone(hand, owner)
    hand.advance(waits - 1)
    assert owned(other.lane_lock("b")) == []
    hand.advance(1)
    assert owned(other.lane_lock("b")) == [0]


def test_keep_alives_name_no_queues_and_move_the_deadline(hand: Running) -> None:
    owner, other = hand.talk(), hand.talk()
    owner.heartbeat("a", topics={"T": "*"})
    ext = {"laneLeaseMillis": "30000", "laneKeepAliveMillis": "800"}
    granted = owner.ask(RequestCode.LOCK_BATCH_MQ, ext, lock_body("a", "T", (0,), "g"))
    named = {"laneKeepAlive": granted.ext["laneKeepAlive"]}
    hand.advance(700)
    assert owner.ask(RequestCode.LOCK_BATCH_MQ, named, lock_body("a", "T", (), "g")).ext == named
    assert owner.ask(RequestCode.LOCK_BATCH_MQ, {"laneKeepAlive": "7"}, lock_body("a", "T", (), "g")).ext == {}
    gone(hand, owner)
    hand.advance(899)
    assert owned(other.lane_lock("b")) == []
    hand.advance(1)
    assert owned(other.lane_lock("b")) == [0]


def test_a_member_that_states_no_timeout_is_answered_as_before(hand: Running) -> None:
    ext = {"laneLeaseMillis": "5000"}
    assert hand.talk().ask(RequestCode.LOCK_BATCH_MQ, ext, lock_body("a", "T", (0,), "g")).ext == {}


def test_a_keep_alive_from_before_a_restart_is_in_vain(hand: Running) -> None:
    """Also when its sender has taken something since: the serials of two lives are never the same."""
    ext = {"laneLeaseMillis": "30000", "laneKeepAliveMillis": "800"}
    granted = hand.talk().ask(RequestCode.LOCK_BATCH_MQ, ext, lock_body("a", "T", (0,), "g"))
    hand.advance(10)
    hand.restart()
    talk = hand.talk()
    talk.lane_lock("a", queues=(1,), laneKeepAliveMillis="800")
    named = {"laneKeepAlive": granted.ext["laneKeepAlive"]}
    assert talk.ask(RequestCode.LOCK_BATCH_MQ, named, lock_body("a", "T", (), "g")).ext == {}


def test_stock_lease_outlives_its_connection(hand: Running) -> None:
    owner, other = hand.talk(), hand.talk()
    owner.heartbeat("a", topics={"T": "*"})
    owner.lock("a")
    gone(hand, owner)
    hand.advance(STOCK_LEASE - 1)
    assert owned(other.lock("b")) == []
    hand.advance(1)
    assert owned(other.lock("b")) == [0]


def test_lane_lease_stays_while_another_connection_of_its_owner_is_there(hand: Running) -> None:
    first, second, other = hand.talk(), hand.talk(), hand.talk()
    for talk in (first, second):
        talk.heartbeat("a", topics={"T": "*"})
    first.lane_lock("a", millis=30_000)
    gone(hand, first)
    hand.advance(5_000)
    assert owned(other.lane_lock("b")) == []


def gone(running: Running, talk: Talk) -> None:
    before = running.call(lambda: len(running.broker._server.peers))
    talk.close()
    while running.call(lambda: len(running.broker._server.peers)) == before:
        pass


def take_over(hand: Running) -> Talk:
    """`a` had the queue under epoch 1, `b` has it under epoch 2."""
    talk = hand.talk()
    talk.send("T")
    talk.lane_lock("a", millis=1_000)
    talk.commit(1, laneClient="a", laneEpoch="1")
    hand.advance(1_000)
    talk.lane_lock("b", millis=30_000)
    return talk


def test_pull_and_commit_of_a_stale_owner_are_refused(hand: Running) -> None:
    talk = take_over(hand)
    assert talk.pull("T", laneClient="a", laneEpoch="1").code == ResponseCode.LEASE_REFUSED
    assert talk.commit(9, laneClient="a", laneEpoch="1").code == ResponseCode.LEASE_REFUSED
    talk.pull("T", commit=9, laneClient="a", laneEpoch="1")
    assert talk.committed() == 1
    assert talk.pull("T", laneClient="b", laneEpoch="2").code == 0
    assert talk.commit(2, laneClient="b", laneEpoch="2").code == 0
    assert talk.committed() == 2


def test_late_commit_of_an_expired_owner_counts_while_nobody_else_came(hand: Running) -> None:
    talk = hand.talk()
    talk.lane_lock("a", millis=1_000)
    hand.advance(5_000)
    assert talk.commit(3, laneClient="a", laneEpoch="1").code == 0
    assert talk.committed() == 3


def test_held_pull_of_an_owner_that_loses_its_queue_is_refused(hand: Running) -> None:
    talk, other = hand.talk(), hand.talk()
    talk.lane_lock("a", millis=1_000)
    held = talk.post_pull("T", 0, hold=20_000, laneClient="a", laneEpoch="1")
    talk.bounds("T")
    hand.advance(1_000)
    other.lane_lock("b", millis=30_000)
    other.send("T", b"for b")
    assert talk.answer(held).code == ResponseCode.LEASE_REFUSED


def test_stock_member_that_does_not_own_the_queue_cannot_move_its_offset_back(hand: Running) -> None:
    owner, other = hand.talk(), hand.talk()
    owner.heartbeat("a", topics={"T": "*"})
    other.heartbeat("b", topics={"T": "*"})
    owner.lock("a")
    owner.commit(10)
    other.commit(5)
    assert owner.committed() == 10
    owner.commit(5)
    assert owner.committed() == 5, "its owner may"
    other.commit(6)
    assert owner.committed() == 6, "forward is believed, as RocketMQ would"


def test_requests_of_members_that_do_not_own_the_queue_are_counted(hand: Running) -> None:
    talk = take_over(hand)
    talk.pull("T", laneClient="a", laneEpoch="1")
    talk.commit(9, laneClient="a", laneEpoch="1")
    stock = hand.talk()
    stock.heartbeat("c", topics={"T": "*"})
    stock.pull("T")
    stock.commit(9)
    names = ("laneStalePulls", "laneStaleCommits", "laneRefusedCommits", "laneRefusedParks")
    assert [talk.runtime()[name] for name in names] == ["2", "1", "1", "0"]


def test_negative_commit_is_no_error_and_changes_nothing(hand: Running) -> None:
    talk = hand.talk()
    talk.commit(4)
    assert talk.commit(-1).code == 0
    assert talk.committed() == 4


@pytest.mark.parametrize(
    ("topic", "broker", "queue"),
    [("T", "", 0), ("T", "other", 0), ("Nowhere", "lanemq", 0), ("T", "lanemq", 4)],
)
@pytest.mark.parametrize("lane", [{}, {"laneLeaseMillis": "5000"}])
def test_queue_that_is_not_the_brokers_is_left_out(
    hand: Running, topic: str, broker: str, queue: int, lane: dict[str, str]
) -> None:
    """One queue under two names would get two owners, and invented ones would fill memory and disk."""
    talk = hand.talk()
    mine = [QueueBody(topic=topic, broker_name=broker, queue_id=queue), QueueBody(topic="T", broker_name=BROKER)]
    body = LockRequest(client_id="a", consumer_group="g", mq_set=mine).encode()
    reply = talk.ask(RequestCode.LOCK_BATCH_MQ, lane, body)
    assert [each.queue for each in LockResponse.decode(reply.body).lock_ok_mq_set] == [("T", BROKER, 0)]
    assert len(hand.broker._parts.state.leases()) == 1


def test_retry_queue_of_a_group_can_be_locked(hand: Running) -> None:
    """Stock members lock it with the others; their heartbeat has made it."""
    talk = hand.talk()
    talk.heartbeat("a", topics={"T": "*"})
    assert owned(talk.lock("a", "%RETRY%g")) == [0]


def test_locks_can_be_looked_at(hand: Running) -> None:
    talk = hand.talk()
    talk.lane_lock("a", millis=2_000)
    reply = talk.ask(RequestCode.LANE_LOCKS, {"consumerGroup": "g"})
    assert b'"owner":"a"' in reply.body
    assert b'"remainingMillis":2000' in reply.body
