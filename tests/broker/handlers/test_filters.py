"""Members of a group with different tags of one topic: who may own its queues and pull from them."""

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, heartbeat, records
from tests.broker.running import ManualClock, RunningBroker
from tests.client.consumer.with_broker import wait_for

from lanemq.wire.bodies import ConsumerIdList, HeartbeatData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.stats_bodies import ConsumerConnection


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    running = start(clock=ManualClock())
    running.connect().create("T", 4)
    return running


class Member:
    """A LaneMQ member that reads T with these tags, or a stock one."""

    def __init__(self, running: RunningBroker, name: str, tags: str, *, ordered: bool | None = True) -> None:
        self.name, self.tags, self.raw = name, tags, running.connect()
        self.ordered, self.epoch = ordered, ""

    def beat(self, tags: str | None = None, version: int = 1) -> Command:
        self.tags = tags or self.tags
        body = HeartbeatData.of_request(heartbeat(self.name, "g", {"T": self.tags}))
        (subscription,) = body.consumer_data_set[0].subscription_data_set
        subscription.sub_version = version
        if self.ordered is not None:
            subscription.lane_ordered = self.ordered
        return self.raw.ask(RequestCode.HEART_BEAT, {}, body.encode())

    def lock(self) -> list[int]:
        found = self.raw.lane_lock(self.name, queues=(0, 1))
        self.epoch = str(found.lane_leases[0].epoch) if found.lane_leases else ""
        return [each.queue_id for each in found.lock_ok_mq_set]

    def pull(self, offset: int = 0) -> Command:
        return self.raw.answer(self.post_pull(offset))

    def post_pull(self, offset: int = 0, hold: int = 0) -> int:
        claim = {"laneClient": self.name, "laneEpoch": self.epoch} if self.epoch else {"laneClient": self.name}
        return self.raw.post_pull("T", offset, hold=hold, tags=self.tags, **claim)

    def leave(self) -> None:
        self.raw.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": self.name, "consumerGroup": "g"})


def joined(running: RunningBroker, name: str, tags: str, *, ordered: bool | None = True) -> Member:
    member = Member(running, name, tags, ordered=ordered)
    assert member.beat().code == 0
    return member


def sharing(raw: RawClient) -> list[str]:
    reply = raw.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g", "laneTopic": "T"})
    return ConsumerIdList.decode(reply.body).consumer_id_list


def test_a_member_with_fewer_tags_gets_no_queue_while_a_wider_one_lives(clocked: RunningBroker) -> None:
    narrow, wide = joined(clocked, "narrow", "a"), joined(clocked, "wide", "a||b")
    assert sharing(wide.raw) == ["wide"]
    assert (narrow.lock(), wide.lock()) == ([], [0, 1])
    wide.raw.unlock("wide", queues=(0, 1), laneEpoch=wide.epoch)
    wide.leave()
    assert sharing(narrow.raw) == ["narrow"]
    assert narrow.lock() == [0, 1]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_pull_skips_nothing_that_a_member_selects_from_its_heartbeat_on(
    clocked: RunningBroker, ordered: bool
) -> None:
    narrow = joined(clocked, "narrow", "a", ordered=ordered)
    if ordered:
        assert narrow.lock() == [0, 1]
    held = narrow.post_pull(hold=5_000)
    narrow.raw.bounds("T")  # the pull is held now
    wide = joined(clocked, "wide", "a||b", ordered=ordered)
    for tag in "ba":
        wide.raw.send("T", properties={"TAGS": tag})
    for refused in (narrow.raw.answer(held), narrow.pull()):
        assert refused.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert "'a||b'".replace("||", " || ") in (refused.remark or "")
    wide.leave()
    assert len(records(narrow.pull())) == 1


def test_an_owner_with_fewer_tags_keeps_its_lease_until_it_gives_the_queue_back(clocked: RunningBroker) -> None:
    """Otherwise the wider member would begin while handlers of the narrower one still run."""
    narrow = joined(clocked, "narrow", "a")
    narrow.lock()
    wide = joined(clocked, "wide", "*")
    assert (narrow.lock(), wide.lock()) == ([0, 1], [])
    assert narrow.raw.commit(0, laneClient="narrow", laneEpoch=narrow.epoch).code == 0
    narrow.raw.unlock("narrow", queues=(0, 1), laneEpoch=narrow.epoch)
    assert (narrow.lock(), wide.lock()) == ([], [0, 1])


def test_tags_of_which_neither_set_contains_the_other_are_refused_with_the_way_out(clocked: RunningBroker) -> None:
    joined(clocked, "first", "a")
    refused = Member(clocked, "second", "b").beat()
    assert refused.code == ResponseCode.GROUP_CONFLICT
    remark = refused.remark or ""
    assert "member first reads T with tags 'a'" in remark
    assert "Deploy 'a || b' first, and 'b' when no member with 'a' is left" in remark
    assert sharing(clocked.connect()) == ["first"]


def test_a_swap_of_tags_works_in_two_steps(clocked: RunningBroker) -> None:
    old, both = joined(clocked, "old", "a"), joined(clocked, "both", "a||b")
    assert Member(clocked, "new", "b").beat().code == ResponseCode.GROUP_CONFLICT, "an old member is left"
    old.leave()
    new = joined(clocked, "new", "b")
    assert sharing(new.raw) == ["both"]
    both.leave()
    assert sharing(new.raw) == ["new"]


def test_other_members_are_notified_when_one_changes_its_tags(clocked: RunningBroker) -> None:
    narrow, other = joined(clocked, "narrow", "a"), joined(clocked, "other", "a")
    for _ in range(2):
        narrow.raw.notice()
    other.beat("a||b", version=2)
    assert narrow.raw.notice().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert sharing(narrow.raw) == ["other"]


def test_stock_members_with_different_tags_are_served_warned_of_and_counted(
    clocked: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker cannot keep queues from them: they would wait for them forever."""
    narrow, wide = joined(clocked, "narrow", "a", ordered=None), joined(clocked, "wide", "a||b", ordered=None)
    other = joined(clocked, "other", "c", ordered=None)
    wide.raw.send("T", properties={"TAGS": "a"})
    assert narrow.raw.lock("narrow").lock_ok_mq_set
    assert narrow.raw.pull("T", tags="a").code == 0
    assert sharing(other.raw) == ["narrow", "other", "wide"]
    assert "members read T with different tags, and some are RocketMQ clients" in caplog.text
    assert wide.raw.runtime()['lanemq_narrower_members{group="g",topic="T"}'] == "2"
    online = wide.raw.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert ConsumerConnection.decode(online.body).subscription_table["T"].lane_narrower == 2


def test_members_in_broadcasting_may_have_any_tags(clocked: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    for name, tags in (("one", "a"), ("other", "b")):
        body = HeartbeatData.of_request(heartbeat(name, "g", {"T": tags}))
        body.consumer_data_set[0].message_model = "BROADCASTING"
        body.consumer_data_set[0].subscription_data_set[0].lane_ordered = True
        raw = clocked.connect()
        assert raw.ask(RequestCode.HEART_BEAT, {}, body.encode()).code == 0
        raw.send("T", properties={"TAGS": tags})
        assert len(records(raw.pull("T", tags=tags, laneClient=name))) == 1
    assert "different tags" not in caplog.text


def lost(running: RunningBroker) -> Member:
    """A member with tag a, which has waited for one with a and b and lost it."""
    narrow, wide = joined(running, "narrow", "a"), joined(running, "wide", "a||b")
    assert wide.lock() == [0, 1]
    wide.raw.close()
    wait_for(lambda: narrow.raw.notice().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and not sharing(narrow.raw))
    return narrow


def pass_time(running: RunningBroker, member: Member, millis: int) -> None:
    """The member sends heartbeats meanwhile."""
    for _ in range(millis // 30_000):
        running.run_for(30_000)
        assert member.beat().code == 0


def test_nobody_takes_the_queues_of_a_killed_member_with_more_tags_for_two_minutes(
    clocked: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    narrow = lost(clocked)
    pass_time(clocked, narrow, 90_000)
    assert (narrow.lock(), narrow.pull().code) == ([], ResponseCode.SUBSCRIPTION_NOT_LATEST)
    (text,) = {each.getMessage() for each in caplog.records if "was lost" in each.getMessage()}
    assert "member wide, which reads T with tags 'a || b', was lost" in text
    assert "Members with 'a' would skip its messages, so they get no queue of T until 22:15:20 UTC" in text
    assert "start a member with 'a || b'; if those messages are not needed, stop it again" in text
    assert narrow.raw.runtime()["lanemq_lost_filters_total"] == "0"
    pass_time(clocked, narrow, 30_000)
    assert narrow.lock() == [0, 1]
    assert (
        "member wide, which read T with tags 'a || b', was lost and has not come back: members with 'a'" in caplog.text
    )
    assert narrow.raw.runtime()["lanemq_lost_filters_total"] == "1"


def test_a_silent_member_with_more_tags_is_waited_for_and_continues_when_it_is_back(clocked: RunningBroker) -> None:
    narrow, wide = joined(clocked, "narrow", "a"), joined(clocked, "wide", "a||b")
    assert wide.lock() == [0, 1]
    pass_time(clocked, narrow, 120_000)
    assert (sharing(narrow.raw), narrow.lock()) == ([], [])
    assert narrow.pull().code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert wide.beat().code == 0
    assert (sharing(wide.raw), wide.lock()) == (["wide"], [0, 1])


def test_the_wait_for_a_killed_member_ends_when_another_with_its_tags_is_stopped(clocked: RunningBroker) -> None:
    narrow = lost(clocked)
    joined(clocked, "other", "a||b").leave()
    assert sharing(narrow.raw) == ["narrow"]


def test_tags_that_do_not_fit_those_of_a_killed_member_are_refused_with_the_time(clocked: RunningBroker) -> None:
    lost(clocked)
    refused = Member(clocked, "other", "a||c").beat()
    assert refused.code == ResponseCode.GROUP_CONFLICT
    assert "counts until 22:15:20 UTC: wait, or start a member with" in (refused.remark or "")


def test_a_group_without_members_is_still_answered_as_such(clocked: RunningBroker) -> None:
    narrow = lost(clocked)
    narrow.leave()
    reply = narrow.raw.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g", "laneTopic": "T"})
    assert reply.code == ResponseCode.SYSTEM_ERROR
