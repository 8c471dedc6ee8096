"""Queue locks over the wire: stock leases, lane leases, epochs through restarts, and who is refused."""

from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.handlers.test_parking import fail_writes
from tests.broker.raw_client import BROKER, RawClient, lock_body
from tests.broker.running import Gate, ManualClock, RunningBroker

from lanemq.broker.handlers.locks import MAX_LINES
from lanemq.core.lane_status import Failure
from lanemq.model.units import Millis
from lanemq.net.serving import loop_slices
from lanemq.net.serving.peer import Peer
from lanemq.wire.bodies import LockRequest, LockResponse, QueueBody
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.route_bodies import GroupList, SubscriptionGroupTable
from lanemq.wire.stats_bodies import ConsumeStats

STOCK_LEASE = 60_000


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    running = start(clock=ManualClock())
    running.connect().create("T", 4)
    return running


def owned(response: LockResponse) -> list[int]:
    return [queue.queue_id for queue in response.lock_ok_mq_set]


@pytest.mark.row("A33")
@pytest.mark.row("A37")
@pytest.mark.row("A40")
def test_partial_grant_is_a_success(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    assert owned(raw.lock("a", queues=(0, 1))) == [0, 1]
    assert owned(raw.lock("b", queues=(1, 2))) == [2]
    assert owned(raw.lock("b", queues=(0,))) == []


@pytest.mark.row("A34")
def test_groups_lock_independently(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    assert owned(raw.lock("a", group="g1")) == owned(raw.lock("b", group="g2")) == [0]


@pytest.mark.row("A38")
@pytest.mark.row("A39")
@pytest.mark.row("A41")
def test_stock_lock_lives_sixty_seconds_from_its_last_renewal(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.lock("a")
    clocked.advance(40_000)
    raw.lock("a")
    clocked.advance(STOCK_LEASE - 1)
    assert owned(raw.lock("b")) == []
    clocked.advance(1)
    assert owned(raw.lock("b")) == [0]
    assert owned(raw.lock("a")) == []


def test_a_stock_answer_has_no_lanemq_fields(clocked: RunningBroker) -> None:
    reply = clocked.connect().ask(RequestCode.LOCK_BATCH_MQ, body=lock_body("a", "T", (0,), "g"))
    assert b"lane" not in reply.body.replace(b'"lanemq"', b"")


def test_lane_answer_carries_epoch_offset_and_holder(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.commit(7)
    granted = raw.lane_lock("a", millis=3_000)
    (lease,) = granted.lane_leases
    assert (lease.epoch, lease.offset, lease.lease_millis) == (1, 7, 3_000)
    (refusal,) = raw.lane_lock("b").lane_refused
    assert (refusal.holder, refusal.remaining_millis) == ("a", 3_000)


def test_epoch_grows_with_every_owner_and_stays_on_renewal(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    epochs = [raw.lane_lock("a").lane_leases[0].epoch for _ in range(2)]
    raw.unlock("a")
    epochs += [raw.lane_lock("b").lane_leases[0].epoch]
    assert epochs == [1, 1, 2]


@pytest.mark.row("A55")
def test_unlock_frees_the_queue_at_once(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.lock("a")
    assert raw.unlock("b").code == 0
    assert owned(raw.lock("b")) == [], "only the owner's unlock counts"
    raw.unlock("a")
    assert owned(raw.lock("b")) == [0]


def test_unlock_with_an_old_epoch_does_nothing(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.lane_lock("a")
    raw.unlock("a", laneEpoch="1")
    raw.lane_lock("a")
    raw.unlock("a", laneEpoch="1")
    assert owned(raw.lock("b")) == []
    raw.unlock("a", laneEpoch="2")
    assert owned(raw.lock("b")) == [0]


def test_grant_and_its_renewal_are_answered_after_they_are_on_disk(broker: RunningBroker) -> None:
    """A renewal names the same epoch: answered early, it gives out what a crash could give out again."""
    raw = broker.connect()
    raw.create("T")
    gate = Gate(broker)
    grant = raw.post(RequestCode.LOCK_BATCH_MQ, {"laneLeaseMillis": "5000"}, lock_body("a", "T", (0,), "g"))
    renewal = raw.post(RequestCode.LOCK_BATCH_MQ, {"laneLeaseMillis": "5000"}, lock_body("a", "T", (0,), "g"))
    raw.bounds("T")
    assert not {grant, renewal} & set(raw.answered())
    gate.open()
    assert raw.answer(grant).code == raw.answer(renewal).code == 0
    gate = Gate(broker)
    assert raw.lane_lock("a").lane_leases, "a plain renewal waits for no disk"
    release = raw.post(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("a", "T", (0,), "g"))
    raw.bounds("T")
    assert release not in raw.answered()
    gate.open()
    assert raw.answer(release).code == 0


@pytest.mark.parametrize("crash", [False, True])
def test_an_answered_epoch_is_never_granted_again(start: Start, folder: Path, crash: bool) -> None:
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.create("T")
    for owner in ("a", "b", "c"):
        last = raw.lane_lock(owner).lane_leases[0].epoch
        raw.unlock(owner)
    after = again(running, start, folder, crash)
    assert after.connect().lane_lock("d").lane_leases[0].epoch == last + 1


@pytest.mark.parametrize("crash", [False, True])
def test_a_restored_lease_keeps_other_members_out(start: Start, folder: Path, crash: bool) -> None:
    """Its owner may still be working, and could not renew while the broker was away."""
    running = start(clock=ManualClock())
    running.connect().create("T")
    running.connect().lane_lock("a", millis=4_000)
    after = again(running, start, folder, crash)
    raw = after.connect()
    assert owned(raw.lane_lock("b")) == []
    assert raw.lane_lock("a", millis=4_000).lane_leases[0].epoch == 1, "and its owner continues"
    after.advance(4_000)
    assert owned(raw.lane_lock("b")) == [0]


def again(running: RunningBroker, start: Start, folder: Path, crash: bool) -> RunningBroker:
    if crash:
        return start(running.crash_image(folder / "image"), clock=running.clock)
    running.restart()
    return running


def test_lane_lease_ends_soon_after_its_connection(clocked: RunningBroker) -> None:
    owner, other = clocked.connect(), clocked.connect()
    owner.heartbeat("a", topics={"T": "*"})
    owner.lane_lock("a", millis=30_000, laneKeepAliveMillis="400")
    gone(clocked, owner)
    assert owned(other.lane_lock("b")) == [], "it may reconnect within the grace"
    clocked.advance(500)
    assert owned(other.lane_lock("b")) == [0]


@pytest.mark.parametrize(
    ("lease", "fields", "waits"),
    [
        (30_000, {"laneKeepAliveMillis": "800"}, 900),
        (30_000, {"laneKeepAliveMillis": "-1"}, 500),
        (5_000, {}, 5_000),  # it states no time before which it stops
    ],
)
def test_a_lane_lease_outlives_its_connection_until_its_owner_starts_no_more_turns(
    clocked: RunningBroker, lease: int, fields: dict[str, str], waits: int
) -> None:
    """It may not have heard that the connection is lost."""
    owner, other = clocked.connect(), clocked.connect()
    owner.heartbeat("a", topics={"T": "*"})
    owner.lane_lock("a", millis=lease, **fields)
    gone(clocked, owner)
    clocked.advance(waits - 1)
    assert owned(other.lane_lock("b")) == []
    clocked.advance(1)
    assert owned(other.lane_lock("b")) == [0]


def test_keep_alives_name_no_queues_and_move_the_deadline(clocked: RunningBroker) -> None:
    owner, other = clocked.connect(), clocked.connect()
    owner.heartbeat("a", topics={"T": "*"})
    ext = {"laneLeaseMillis": "30000", "laneKeepAliveMillis": "800"}
    granted = owner.ask(RequestCode.LOCK_BATCH_MQ, ext, lock_body("a", "T", (0,), "g"))
    named = {"laneKeepAlive": granted.ext["laneKeepAlive"]}
    clocked.advance(700)
    assert owner.ask(RequestCode.LOCK_BATCH_MQ, named, lock_body("a", "T", (), "g")).ext == named
    assert owner.ask(RequestCode.LOCK_BATCH_MQ, {"laneKeepAlive": "7"}, lock_body("a", "T", (), "g")).ext == {}
    gone(clocked, owner)
    clocked.advance(899)
    assert owned(other.lane_lock("b")) == []
    clocked.advance(1)
    assert owned(other.lane_lock("b")) == [0]


def test_a_member_that_states_no_timeout_is_answered_as_before(clocked: RunningBroker) -> None:
    ext = {"laneLeaseMillis": "5000"}
    reply = clocked.connect().ask(RequestCode.LOCK_BATCH_MQ, ext, lock_body("a", "T", (0,), "g"))
    assert "laneKeepAlive" not in reply.ext


def test_a_keep_alive_from_before_a_restart_is_refused(clocked: RunningBroker) -> None:
    """Also when its sender has taken something since: the serials of two lives are never the same."""
    ext = {"laneLeaseMillis": "30000", "laneKeepAliveMillis": "800"}
    granted = clocked.connect().ask(RequestCode.LOCK_BATCH_MQ, ext, lock_body("a", "T", (0,), "g"))
    clocked.advance(10)
    clocked.restart()
    raw = clocked.connect()
    raw.lane_lock("a", queues=(1,), laneKeepAliveMillis="800")
    named = {"laneKeepAlive": granted.ext["laneKeepAlive"]}
    assert "laneKeepAlive" not in raw.ask(RequestCode.LOCK_BATCH_MQ, named, lock_body("a", "T", (), "g")).ext


def test_stock_lease_outlives_its_connection(clocked: RunningBroker) -> None:
    owner, other = clocked.connect(), clocked.connect()
    owner.heartbeat("a", topics={"T": "*"})
    owner.lock("a")
    gone(clocked, owner)
    clocked.advance(STOCK_LEASE - 1)
    assert owned(other.lock("b")) == []
    clocked.advance(1)
    assert owned(other.lock("b")) == [0]


def test_lane_lease_stays_while_another_connection_of_its_owner_is_there(clocked: RunningBroker) -> None:
    first, second, other = clocked.connect(), clocked.connect(), clocked.connect()
    for raw in (first, second):
        raw.heartbeat("a", topics={"T": "*"})
    first.lane_lock("a", millis=30_000)
    gone(clocked, first)
    clocked.advance(5_000)
    assert owned(other.lane_lock("b")) == []


def gone(running: RunningBroker, raw: RawClient) -> None:
    before = running.call(lambda: len(running.broker.running.server.peers))
    raw.close()
    while running.call(lambda: len(running.broker.running.server.peers)) == before:
        pass


def take_over(clocked: RunningBroker) -> RawClient:
    """`a` had the queue under epoch 1, `b` has it under epoch 2."""
    raw = clocked.connect()
    raw.send("T")
    raw.lane_lock("a", millis=1_000)
    raw.commit(1, laneClient="a", laneEpoch="1")
    clocked.advance(1_000)
    raw.lane_lock("b", millis=30_000)
    return raw


def test_pull_and_commit_of_a_stale_owner_are_refused(clocked: RunningBroker) -> None:
    raw = take_over(clocked)
    assert raw.pull("T", laneClient="a", laneEpoch="1").code == ResponseCode.LEASE_REFUSED
    assert raw.commit(9, laneClient="a", laneEpoch="1").code == ResponseCode.LEASE_REFUSED
    raw.pull("T", commit=9, laneClient="a", laneEpoch="1")
    assert raw.committed() == 1
    assert raw.pull("T", laneClient="b", laneEpoch="2").code == 0
    assert raw.commit(2, laneClient="b", laneEpoch="2").code == 0
    assert raw.committed() == 2


def test_a_late_commit_counts_while_the_queue_has_no_other_owner(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.lane_lock("a", millis=1_000)
    clocked.advance(5_000)
    assert raw.commit(3, laneClient="a", laneEpoch="1").code == 0
    assert raw.committed() == 3


def test_held_pull_of_an_owner_that_loses_its_queue_is_refused(clocked: RunningBroker) -> None:
    raw, other = clocked.connect(), clocked.connect()
    raw.lane_lock("a", millis=1_000)
    held = raw.post_pull("T", 0, hold=20_000, laneClient="a", laneEpoch="1")
    raw.bounds("T")
    clocked.advance(1_000)
    other.lane_lock("b", millis=30_000)
    other.send("T", b"for b")
    assert raw.answer(held).code == ResponseCode.LEASE_REFUSED


def test_stock_member_that_does_not_own_the_queue_cannot_move_its_offset_back(clocked: RunningBroker) -> None:
    owner, other = clocked.connect(), clocked.connect()
    owner.heartbeat("a", topics={"T": "*"})
    other.heartbeat("b", topics={"T": "*"})
    owner.lock("a")
    owner.commit(10)
    other.commit(5)
    assert owner.committed() == 10
    owner.commit(5)
    assert owner.committed() == 5, "its owner may go back"
    other.commit(6)
    assert owner.committed() == 6, "any member may go forward, as in RocketMQ"


def test_requests_of_members_that_do_not_own_the_queue_are_counted(clocked: RunningBroker) -> None:
    raw = take_over(clocked)
    raw.pull("T", laneClient="a", laneEpoch="1")
    raw.commit(9, laneClient="a", laneEpoch="1")
    stock = clocked.connect()
    stock.heartbeat("c", topics={"T": "*"})
    stock.pull("T")
    stock.commit(9)
    kinds, runtime = ("pull", "stock commit", "commit", "park"), raw.runtime()
    counts = [runtime[f'lanemq_stale_requests_total{{request="{kind}"}}'] for kind in kinds]
    assert counts == ["2", "1", "1", "0"]


def test_negative_commit_is_not_an_error_and_changes_nothing(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.commit(4)
    assert raw.commit(-1).code == 0
    assert raw.committed() == 4


@pytest.mark.parametrize(
    ("topic", "broker", "queue"),
    [("T", "", 0), ("T", "other", 0), ("Nowhere", "lanemq", 0), ("T", "lanemq", 4)],
)
@pytest.mark.parametrize("lane", [{}, {"laneLeaseMillis": "5000"}])
def test_a_queue_of_another_broker_is_left_out(
    clocked: RunningBroker, topic: str, broker: str, queue: int, lane: dict[str, str]
) -> None:
    """One queue under two names would get two owners, and invented ones would fill memory and disk."""
    raw = clocked.connect()
    mine = [QueueBody(topic=topic, broker_name=broker, queue_id=queue), QueueBody(topic="T", broker_name=BROKER)]
    body = LockRequest(client_id="a", consumer_group="g", mq_set=mine).encode()
    reply = raw.ask(RequestCode.LOCK_BATCH_MQ, lane, body)
    assert [each.queue for each in LockResponse.decode(reply.body).lock_ok_mq_set] == [("T", BROKER, 0)]
    assert len(clocked.broker.running.context.state.leases()) == 1


def test_retry_queue_of_a_group_can_be_locked(clocked: RunningBroker) -> None:
    """Stock members lock it with the others; their heartbeat has made it."""
    raw = clocked.connect()
    raw.heartbeat("a", topics={"T": "*"})
    assert owned(raw.lock("a", "%RETRY%g")) == [0]


def test_locks_can_be_listed(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.lane_lock("a", millis=2_000)
    reply = raw.ask(RequestCode.LANE_LOCKS, {"consumerGroup": "g"})
    assert b'"owner":"a"' in reply.body
    assert b'"remainingMillis":2000' in reply.body


def test_a_group_whose_members_died_before_they_committed_is_listed_with_its_lag(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.send("T")
    raw.lock("a")
    raw.lock("b", group="left")
    raw.unlock("b", group="left")
    clocked.advance(STOCK_LEASE + 1)
    listed = SubscriptionGroupTable.decode(raw.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert "g" in listed.subscription_group_table
    assert "left" not in listed.subscription_group_table, "it gave its queues up, so nothing of it is unfinished"
    stats = ConsumeStats.decode(raw.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body)
    assert sum(at.broker_offset - at.consumer_offset for at in stats.offset_table.values()) == 1
    readers = GroupList.decode(raw.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).body)
    assert readers.group_list == ["g"]


def test_such_a_group_is_forgotten_also_after_a_restart(clocked: RunningBroker) -> None:
    clocked.connect().lock("a")
    clocked.restart()
    clocked.advance(601_000)
    clocked.advance(2_000)
    listed = clocked.connect().ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    assert SubscriptionGroupTable.decode(listed).subscription_group_table == {}
    assert clocked.broker.running.context.locks.groups() == ()


def test_a_request_for_many_queues_is_few_lines_in_the_log(
    clocked: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lanemq.broker.handlers.locks")
    raw = clocked.connect()
    raw.create("Wide", 200)
    assert len(raw.lock("a", "Wide", tuple(range(200))).lock_ok_mq_set) == 200
    lines = [record.getMessage() for record in caplog.records if "owns" in record.getMessage()]
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == f"group g: a owns {200 - MAX_LINES} further queues"


def lock_and_unlock(running: RunningBroker) -> int:
    """A client locks 200 queues and unlocks the last 50 without waiting; how many of them can another one lock then?"""
    raw, queues = running.connect(), tuple(range(200))
    raw.create("Wide", 200)
    asked = [
        raw.frame(code, {}, lock_body("a", "Wide", part, "g"))
        for code, part in ((RequestCode.LOCK_BATCH_MQ, queues), (RequestCode.UNLOCK_BATCH_MQ, queues[150:]))
    ]
    raw.socket.sendall(b"".join(frame for _, frame in asked))
    locked, unlocked = (raw.answer(opaque) for opaque, _ in asked)
    assert len(LockResponse.decode(locked.body).lock_ok_mq_set) == 200
    assert unlocked.code == 0
    return len(running.connect().lock("b", "Wide", queues).lock_ok_mq_set)


def test_a_long_lock_request_is_handled_in_slices_and_before_what_follows_it(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_slices, "SLICE_NS", 0)
    assert lock_and_unlock(broker) == 50


def test_control_if_later_requests_did_not_wait_an_unlock_would_come_too_early(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_slices, "SLICE_NS", 0)
    monkeypatch.setattr(Peer, "hold", lambda _: None)
    monkeypatch.setattr(Peer, "release", lambda _: None)
    assert lock_and_unlock(broker) == 0


def test_no_grant_is_answered_while_a_lane_that_it_passes_is_not_marked_on_disk(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request is refused because the write fails. The second finds the lease granted, and fails as well."""
    running = start(clock=ManualClock())
    owner, stock = running.connect(), running.connect()
    owner.create("T", 4)
    (lease,) = owner.lane_lock("member", laneFinished="true").lane_leases
    running.call(lambda: running.progress("g", "T").park("k", [0], Failure("broken", 1), now=Millis(1)))
    owner.unlock("member", laneEpoch=str(lease.epoch))
    fail_writes(monkeypatch, 2)
    body = lock_body("stock", "T", (0,), "g")
    for _ in range(2):
        assert stock.ask(RequestCode.LOCK_BATCH_MQ, {}, body).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert stock.lock("stock").lock_ok_mq_set
    fail_writes(monkeypatch, 1)
    assert stock.lock("stock").lock_ok_mq_set, "nothing has to be written any more"
