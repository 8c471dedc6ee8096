"""A restarted broker waits for a member with more tags, as for one that was lost."""

from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.handlers.test_filters import Member, joined, pass_time, sharing
from tests.broker.raw_client import RawClient, heartbeat, records
from tests.broker.running import BrokerProcess, Gate, ManualClock, RunningBroker

from lanemq.model.errors import StorageError
from lanemq.wire.bodies import HeartbeatData
from lanemq.wire.codes import RequestCode, ResponseCode


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    """A broker with a message of each tag in queue 0."""
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.create("T", 4)
    for tag in "ba":
        raw.send("T", properties={"TAGS": tag})
    return running


def restart(running: RunningBroker, *, narrow_ordered: bool = True) -> Member:
    """Restart the broker; the member with fewer tags is back first."""
    running.restart()
    return joined(running, "narrow", "a", ordered=narrow_ordered)


def count(running: RunningBroker) -> int:
    """Rows in the database."""
    running.tick()
    return len(running.broker.running.context.state.filters())


@pytest.mark.parametrize("ordered", [True, False])
def test_a_member_with_fewer_tags_that_is_back_first_skips_nothing(clocked: RunningBroker, ordered: bool) -> None:
    joined(clocked, "narrow", "a", ordered=ordered)
    joined(clocked, "wide", "a||b", ordered=ordered)
    narrow = restart(clocked, narrow_ordered=ordered)
    assert (sharing(narrow.raw), narrow.lock()) == ([], [])
    assert narrow.pull().code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    wide = joined(clocked, "wide", "a||b", ordered=ordered)
    assert sharing(narrow.raw) == ["wide"]
    if ordered:
        assert wide.lock() == [0, 1]
    assert len(records(wide.pull())) == 2


def test_a_pull_before_the_first_heartbeat_skips_nothing(clocked: RunningBroker) -> None:
    joined(clocked, "wide", "a||b", ordered=False)
    clocked.restart()
    assert Member(clocked, "narrow", "a").pull().code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_the_wait_ends_after_two_minutes_with_the_warnings_and_the_count_of_a_lost_member(
    clocked: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    joined(clocked, "wide", "a||b")
    narrow = restart(clocked)
    pass_time(clocked, narrow, 90_000)
    assert (narrow.lock(), narrow.raw.runtime()["lanemq_lost_filters_total"]) == ([], "0")
    (text,) = {each.getMessage() for each in caplog.records if "was lost" in each.getMessage()}
    assert "a member from before the broker's start, which reads T with tags 'a || b', was lost" in text
    assert "so they get no queue of T until 22:15:20 UTC" in text
    pass_time(clocked, narrow, 30_000)
    assert (narrow.lock(), narrow.raw.runtime()["lanemq_lost_filters_total"]) == ([0, 1], "1")
    assert (
        "a member from before the broker's start, which read T with tags 'a || b', was lost and has not come back: "
        "members with 'a' get the queues now" in caplog.text
    )
    assert count(clocked) == 1
    assert restart(clocked).lock() == [0, 1]


def test_time_in_which_the_broker_does_not_run_does_not_count(clocked: RunningBroker) -> None:
    joined(clocked, "wide", "a||b")
    clocked.stop()
    assert clocked.clock is not None
    clocked.clock.passed += 600_000
    clocked._start()
    narrow = joined(clocked, "narrow", "a")
    assert narrow.pull().code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_a_filter_that_does_not_fit_is_refused_with_the_time(clocked: RunningBroker) -> None:
    joined(clocked, "wide", "a||b")
    clocked.restart()
    refused = Member(clocked, "other", "a||c").beat()
    assert refused.code == ResponseCode.GROUP_CONFLICT
    assert "a member from before the broker's start reads T with tags 'a || b'" in (refused.remark or "")
    assert "counts until 22:15:20 UTC: wait, or start a member with" in (refused.remark or "")


def test_a_narrowing_after_a_clean_stop_of_the_wider_member_waits_for_nothing(clocked: RunningBroker) -> None:
    joined(clocked, "narrow", "a")
    joined(clocked, "wide", "a||b").leave()
    assert restart(clocked).lock() == [0, 1]


def test_a_wider_member_that_is_back_and_stops_ends_the_wait(clocked: RunningBroker) -> None:
    joined(clocked, "wide", "a||b")
    narrow = restart(clocked)
    joined(clocked, "other", "a||b").leave()
    assert narrow.lock() == [0, 1]
    assert restart(clocked).lock() == [0, 1]


def test_nobody_ends_the_wait_by_leaving_without_a_name(clocked: RunningBroker) -> None:
    """The members of before the start have no client id that the broker knows."""
    joined(clocked, "wide", "a||b")
    narrow = restart(clocked)
    narrow.raw.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "", "consumerGroup": "g"})
    assert narrow.lock() == []


def test_the_filter_that_is_left_counts_when_the_widest_member_has_stopped(clocked: RunningBroker) -> None:
    joined(clocked, "middle", "a||b")
    joined(clocked, "wide", "*").leave()
    narrow = restart(clocked)
    assert narrow.lock() == []
    assert "'a || b'" in (narrow.pull().remark or "")


@pytest.mark.parametrize("what", ["group", "topic"])
def test_a_deleted_group_or_topic_keeps_nobody_waiting(clocked: RunningBroker, what: str) -> None:
    joined(clocked, "wide", "a||b")
    clocked.restart()
    raw = clocked.connect()
    if what == "group":
        assert raw.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}).code == 0
    else:
        assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    raw.create("T", 4)
    assert joined(clocked, "narrow", "a").lock() == [0, 1]
    clocked.stop()
    clocked._start()
    assert joined(clocked, "narrow", "a").lock() == [0, 1]


def test_rows_last_as_long_as_the_members_that_they_stand_for(clocked: RunningBroker) -> None:
    """So they are bounded by the quota of subscriptions, and names that a client once invented do not stay."""
    members = [joined(clocked, f"member {number}", "a||b") for number in range(3)]
    joined(clocked, "stock", "*", ordered=None)
    assert count(clocked) == 1
    for member in members:
        member.raw.close()
    clocked.run_for(60_000)
    assert count(clocked) == 1
    clocked.run_for(60_500)
    assert count(clocked) == 0
    clocked.restart()
    assert count(clocked) == 0


def test_members_with_the_same_tags_cost_one_row_and_one_write(clocked: RunningBroker) -> None:
    written, state = list[object](), clocked.broker.running.context.state
    save = state.save_filters
    state.save_filters = lambda rows: (written.extend(rows), save(rows))[1]  # type: ignore[method-assign]
    for number in range(5):
        joined(clocked, f"member {number}", "a||b").beat()
    clocked.tick()
    assert len(written) == 1


def test_a_heartbeat_is_answered_when_its_filter_is_on_disk(clocked: RunningBroker) -> None:
    """A broker that was killed before would not know of a member that believes to have joined."""
    gate, wide, second = Gate(clocked), Member(clocked, "wide", "a||b"), Member(clocked, "second", "a||b")
    asked = [each.raw.post(RequestCode.HEART_BEAT, {}, _beat(each.name, each.tags)) for each in (wide, second)]
    for member in (wide, second):
        member.raw.bounds("T")  # a later request is answered
    assert sharing(wide.raw) == ["second", "wide"]
    assert asked[0] not in wide.raw.answered()
    assert asked[1] not in second.raw.answered()
    gate.open()
    assert (wide.raw.answer(asked[0]).code, second.raw.answer(asked[1]).code) == (0, 0)


def test_while_the_disk_is_slow_the_housekeeping_queues_no_further_writes(clocked: RunningBroker) -> None:
    """A job for each tick would pile up: rows of leases and offsets would wait behind it long after."""
    running, gate, wide = clocked.broker.running, Gate(clocked), Member(clocked, "wide", "a||b")
    asked = wide.raw.post(RequestCode.HEART_BEAT, {}, _beat(wide.name, wide.tags))
    wide.raw.bounds("T")  # a later request is answered
    queued = running.context.row_thread.in_progress
    for _ in range(10):
        clocked.call(lambda: running.context.saved_filters.tick(running.context.clock.now()))
    assert running.context.row_thread.in_progress == queued
    gate.open()
    assert wide.raw.answer(asked).code == 0


def test_a_member_that_leaves_is_answered_when_that_is_on_disk(clocked: RunningBroker) -> None:
    """A broker that was killed before would wait for a member that was stopped."""
    wide = joined(clocked, "wide", "a||b")
    gate = Gate(clocked)
    asked = wide.raw.post(RequestCode.UNREGISTER_CLIENT, {"clientID": "wide", "consumerGroup": "g"})
    wide.raw.bounds("T")  # a later request is answered
    assert asked not in wide.raw.answered()
    gate.open()
    assert wide.raw.answer(asked).code == 0


def test_members_join_on_a_disk_that_takes_no_rows_and_the_row_follows(
    clocked: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads continue on a broken disk. Only a restart would be unsafe, and the broker says so."""

    def fail(_: object) -> None:
        raise StorageError("the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(clocked.broker.running.context.state, "save_filters", fail)
        joined(clocked, "wide", "a||b", ordered=False)
        assert "the tags that groups read could not be saved: the disk is broken" in caplog.text
    assert count(clocked) == 0, "the next attempt has a pause before it"
    clocked.run_for(5_000)
    assert count(clocked) == 1


def test_heartbeats_whose_rows_wait_for_the_disk_are_limited(clocked: RunningBroker) -> None:
    """Otherwise a client that changes its tags with every heartbeat could fill the row thread's line."""
    gate, raw = Gate(clocked), clocked.connect()
    asked = [raw.post(RequestCode.HEART_BEAT, {}, _beat("wide", tags)) for tags in ("a", "a||b") * 501]
    assert raw.answer(asked[-1]).code == ResponseCode.SYSTEM_BUSY
    gate.open()
    assert raw.answer(asked[0]).code == 0


def _beat(name: str, tags: str) -> bytes:
    body = HeartbeatData.of_request(heartbeat(name, "g", {"T": tags}))
    body.consumer_data_set[0].subscription_data_set[0].lane_ordered = True
    return body.encode()


@pytest.mark.slow
def test_a_broker_that_is_killed_right_after_a_wider_member_joined_waits_for_it(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with RawClient(broker.address) as raw:
        raw.create("T", 4)
        assert raw.ask(RequestCode.HEART_BEAT, {}, _beat("wide", "a||b")).code == 0
        broker.kill()
    broker = BrokerProcess(tmp_path / "data")
    try:
        with RawClient(broker.address) as raw:
            assert raw.pull("T", tags="a", laneClient="narrow").code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    finally:
        broker.kill()
