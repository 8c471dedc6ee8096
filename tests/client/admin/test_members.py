"""Owners and held keys as members report them, through a broker that passes request 307 on to them."""

from collections.abc import Callable, Iterator

import pytest
from tests.broker.running import ManualClock
from tests.client.fake_broker import FakeBroker

from lanemq.client.admin.members import (
    MAX_ASKED,
    MAX_STUCK,
    RELAY_SECONDS,
    SILENT_SECONDS,
    MemberQuestions,
    MemberReport,
    name_owners,
)
from lanemq.client.admin.views import GroupDescription, GroupQueue, LeaseView, NoAnswer
from lanemq.client.admin.watching import WatchAdmin
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset
from lanemq.net.security import OPEN
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import HeldLaneBody, HeldLanesBody, LaneStateAnswer, LaneStateBody
from lanemq.wire.stats_bodies import ConsumerRunningInfo, ProcessQueueInfo

Answer = tuple[int, dict[str, str], bytes]
HERE, THERE = MessageQueue("orders", "apache", 0), MessageQueue("orders", "apache", 1)


def info(*, lane: bool = True) -> ConsumerRunningInfo:
    """A member that has locked one queue, has another, and holds a key."""
    held = HeldLanesBody(lanes=[HeldLaneBody(topic="orders", broker="apache", queue_id=0, key="k")])
    properties = {"laneHeld": held.encode().decode(), "laneState": LaneStateAnswer(state="held").encode().decode()}
    return ConsumerRunningInfo(
        mq_table={HERE: ProcessQueueInfo(locked=True), THERE: ProcessQueueInfo(locked=False)},
        properties=properties if lane else {},
    )


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(lane=False) as found:
        yield found


def relays(broker: FakeBroker, answer: Callable[[Command], Answer]) -> None:
    broker.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = answer


def test_a_member_reports_what_it_has_locked_and_what_it_holds(broker: FakeBroker) -> None:
    asked: list[dict[str, str]] = []

    def answer(command: Command) -> Answer:
        asked.append(command.ext)
        return 0, {}, info().encode()

    relays(broker, answer)
    found = MemberQuestions(OPEN, ManualClock()).reports([("g", "a@1", broker.address)])
    report = found["g", "a@1"]
    assert report.owned == {HERE}
    assert report.held is not None
    assert [lane.key for lane in report.held.lanes] == ["k"]
    assert asked == [{"consumerGroup": "g", "clientId": "a@1", "laneHeld": "true"}]


def test_another_client_reports_its_queues_and_nothing_about_keys(broker: FakeBroker) -> None:
    relays(broker, lambda _: (0, {}, info(lane=False).encode()))
    questions = MemberQuestions(OPEN, ManualClock())
    assert questions.reports([("g", "java", broker.address)]) == {("g", "java"): MemberReport(frozenset({HERE}))}
    answer = questions.lane_through_apache(broker.address, "g", "java", LaneStateBody(topic="orders"))
    assert isinstance(answer, NoAnswer)
    assert "does not report on single keys" in answer.why


def test_what_a_lane_waits_for_is_asked_of_its_owner(broker: FakeBroker) -> None:
    bodies: list[LaneStateBody] = []

    def answer(command: Command) -> Answer:
        bodies.append(LaneStateBody.decode(command.body))
        return 0, {}, info().encode()

    relays(broker, answer)
    wanted = LaneStateBody(topic="orders", broker="apache", queue_id=0, key="k")
    found = MemberQuestions(OPEN, ManualClock()).lane_through_apache(broker.address, "g", "a@1", wanted)
    assert found == LaneStateAnswer(state="held")
    assert bodies == [wanted]


@pytest.mark.parametrize(
    "body", [b"no JSON", ConsumerRunningInfo(properties={"laneHeld": "[", "laneState": "["}).encode()]
)
def test_an_answer_that_cannot_be_read_is_no_answer(broker: FakeBroker, body: bytes) -> None:
    """A member must not make all groups of the cluster unreadable."""
    relays(broker, lambda _: (0, {}, body))
    questions = MemberQuestions(OPEN, ManualClock())
    assert questions.reports([("g", "a@1", broker.address)])["g", "a@1"].why
    assert isinstance(questions.lane_through_apache(broker.address, "g", "a@1", LaneStateBody()), NoAnswer)


def test_a_member_that_is_gone_is_named_with_the_brokers_reason(broker: FakeBroker) -> None:
    relays(broker, lambda _: (ResponseCode.SYSTEM_ERROR, {}, b""))
    broker.remarks[ResponseCode.SYSTEM_ERROR] = "The Consumer <g> <a@1> not online"
    found = MemberQuestions(OPEN, ManualClock()).reports([("g", "a@1", broker.address)])
    assert found["g", "a@1"] == MemberReport(why="could not be asked: The Consumer <g> <a@1> not online")


def test_members_that_do_not_answer_take_few_threads_of_the_broker(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Apache broker waits ten seconds for each of them, on a thread that others need."""
    clock = ManualClock()
    questions = MemberQuestions(OPEN, clock)
    members = [("g", f"member-{number}", broker.address) for number in range(20)]
    with broker.asleep(), monkeypatch.context() as impatient:
        impatient.setattr("lanemq.client.admin.members.TIMEOUT", 0.01)
        found = questions.reports(members)
    silent = [name for (_, name), report in found.items() if "did not answer within" in report.why]
    assert MAX_STUCK <= len(silent) < 2 * MAX_STUCK, "those that were under way at once"
    assert {report.why for (_, name), report in found.items() if name not in silent} <= {
        f"was not asked, because {count} other members did not answer" for count in range(MAX_STUCK, 2 * MAX_STUCK)
    }
    relays(broker, lambda _: (0, {}, info().encode()))
    clock.passed += int(RELAY_SECONDS * 1000)
    found = questions.reports(members)
    assert {name for (_, name), report in found.items() if report.why} == set(silent), "they are not asked again soon"
    clock.passed += int(SILENT_SECONDS * 1000)
    assert not any(report.why for report in questions.reports(members).values())


def test_members_beyond_the_limit_are_named_as_not_asked(broker: FakeBroker) -> None:
    relays(broker, lambda _: (0, {}, info().encode()))
    members = [("g", f"member-{number}", broker.address) for number in range(MAX_ASKED + 3)]
    found = MemberQuestions(OPEN, ManualClock()).reports(members)
    assert sum("not asked" in report.why for report in found.values()) == 3


def group(*queues: MessageQueue) -> GroupDescription:
    return GroupDescription("g", (), {}, tuple(GroupQueue(each, QueueOffset(0), QueueOffset(9)) for each in queues))


def test_a_lease_names_the_owner_on_a_lane_broker_and_the_member_on_another() -> None:
    lane = MessageQueue("orders", "lanemq", 0)
    leases = [LeaseView("g", lane, "a@1", Epoch(7), 5.0, stock=False)]
    reports = {("g", "b@2"): MemberReport(frozenset({HERE, lane})), ("other", "c@3"): MemberReport(frozenset({THERE}))}
    found = name_owners(group(HERE, THERE, lane), leases, ["apache"], reports)
    assert [(each.owner, each.epoch) for each in found.queues] == [("b@2", None), (None, None), ("a@1", 7)]
    assert found.owners_unknown == ""


def test_a_missing_report_makes_owners_unknown_and_not_absent() -> None:
    reports = {("g", "b@2"): MemberReport(why="did not answer within 500 ms")}
    found = name_owners(group(HERE), (), ["apache"], reports)
    assert found.owners_unknown == "b@2 did not answer within 500 ms"
    assert found.note.endswith("Owners may be missing: b@2 did not answer within 500 ms.")


def test_held_keys_of_members_are_listed_and_a_silent_member_is_named() -> None:
    with WatchAdmin("127.0.0.1:1") as admin:
        admin._calls.masters = lambda: {}  # type: ignore[method-assign]
        held = HeldLanesBody(lanes=[HeldLaneBody(topic="orders", broker="apache", key="k")])
        admin._reports = {("g", "a@1"): MemberReport(held=held), ("g", "b@2"): MemberReport(why="did not answer")}
        found = admin.all_held_lanes([])
    assert [(lane.group, lane.owner, lane.key) for lane in found.lanes] == [("g", "a@1", "k")]
    assert [(each.owner, each.why) for each in found.unknown] == [("b@2", "did not answer")]
