"""What the screens show, without a broker: levels, trends, events, journeys."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs

import pytest

from lanemq.client.admin.dead_letters import GroupDeadLetter
from lanemq.client.admin.key_progress import KeyFacts, KeyProgress
from lanemq.client.admin.parked import ParkedLaneView
from lanemq.client.admin.queue_progress import QueueBacklog
from lanemq.client.admin.views import GroupMember, GroupQueue, LaneStateView, QueueBounds, TopicDescription
from lanemq.client.admin.watching import BrokerView, HeldLaneView, UnknownMember, waiting_keys
from lanemq.client.message import Message
from lanemq.console.routes.groups import position
from lanemq.console.screens import render_part
from lanemq.console.snapshot import GroupDeadLetters, GroupNow, Snapshot
from lanemq.console.trends import Trend, Trends
from lanemq.console.views.groups import group_rows, group_view, lag_course, lag_series, never_read_notes
from lanemq.console.views.home import OrderVerdict, home_view, plot_series
from lanemq.console.views.key import ClockPair, KeyView, key_view
from lanemq.console.views.messages import Older, Search, older_query, parse_older, parse_search, places_of
from lanemq.console.views.pipelines import NOT_IN_TIME, PipelineNow, PipelineReading
from lanemq.console.views.plots import Drawn, Plot, plot
from lanemq.console.views.settings import broker_rows
from lanemq.console.views.steps import KeyInPipeline, step_of
from lanemq.console.views.topics import new_topic_view, parse_new_topic, topic_rows
from lanemq.console.views.waiting import MAX_LISTED, waiting_view
from lanemq.console.wording import NONE, ago, lateness, rate, size, span, time_zone
from lanemq.core.lane_status import LaneStatus
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.pipelines.operate.dead_letters import DeadLetterRecord, DeadLetterState
from lanemq.pipelines.operate.parked import HeldLane, LaneState, WaitingKey
from lanemq.pipelines.operate.status import PipelineQueue, PipelineStatus
from lanemq.pipelines.stages.transitions.messages import WaitingMessage
from lanemq.pipelines.stages.transitions.shard import WaitReason
from lanemq.wire.properties import LANE_WHY

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
QUEUE = MessageQueue("orders", "b", 0)
MEMBER = GroupMember("worker-1", "10.0.0.1:5", "PYTHON", 1)


def group(offset: int, end: int, *, owner: str = "worker-1", finished: int = 0, late_ms: int | None = None) -> GroupNow:
    at = GroupQueue(QUEUE, QueueOffset(offset), QueueOffset(end), owner, Epoch(1), finished)
    return GroupNow("shipping", (MEMBER,), {"orders": "*"}, (QueueBacklog(at, late_ms, 4000),))


def snapshot(at: int, *groups: GroupNow, end: int = 0) -> Snapshot:
    topic = TopicDescription("orders", True, (QueueBounds(QUEUE, QueueOffset(0), QueueOffset(end), None),))
    broker = BrokerView("b", "127.0.0.1:9876", True, {"laneReadOnly": "false"})
    return Snapshot(Millis(at), brokers=(broker,), topics=(topic,), groups=groups)


def parked(status: LaneStatus = LaneStatus.PARKED) -> ParkedLaneView:
    return ParkedLaneView("shipping", QUEUE, "order-7", status, "boom", 4, NOW, 3, QueueOffset(18), QueueOffset(23))


def levels(now: Snapshot, verdict: OrderVerdict | None = None) -> dict[str, str]:
    return {tile.name: tile.level for tile in home_view(now, Trends(), verdict).tiles}


def test_home_is_green_if_all_is_well_and_grey_where_nothing_is_known() -> None:
    well = levels(snapshot(0, group(5, 5)), OrderVerdict("pass", 10, 0, Millis(0)))
    assert set(well.values()) == {"good"}
    assert levels(snapshot(0, group(5, 5)))["Order"] == "none"


@pytest.mark.parametrize(
    ("now", "tile", "level"),
    [
        (Snapshot(Millis(0), error="refused"), "Up", "bad"),
        (Snapshot(Millis(0), error="refused"), "Stuck", "none"),
        (replace(snapshot(0), brokers=(BrokerView("b", "x", True, {"laneReadOnly": "disk"}),)), "Up", "bad"),
        (replace(snapshot(0), other_clusters="b:2 is another cluster"), "Up", "warn"),
        (replace(snapshot(0), parked=(parked(),)), "Stuck", "bad"),
        (replace(snapshot(0), parked=(parked(LaneStatus.HELD),)), "Failed", "warn"),
        (replace(snapshot(0), parked=(parked(LaneStatus.HELD),)), "Stuck", "good"),
        (snapshot(0, replace(group(0, 5), members=())), "Stuck", "warn"),
        (replace(snapshot(0, replace(group(0, 5), members=())), parked=(parked(),)), "Stuck", "bad"),
        (snapshot(0, group(0, 5, late_ms=59_000)), "Late", "good"),
        (snapshot(0, group(0, 5, late_ms=61_000)), "Late", "warn"),
    ],
)
def test_home_says_what_is_wrong(now: Snapshot, tile: str, level: str) -> None:
    assert levels(now)[tile] == level


def pipeline(
    problem: str = "",
    *,
    keys: Sequence[WaitingKey] = (),
    letters: Sequence[DeadLetterRecord] | None = None,
    **facts: Any,
) -> PipelineNow:
    """`letters`: None if they are in a sink of their own."""
    if problem:
        return PipelineNow(0, "c", None, problem)
    status = PipelineStatus(**{**dict.fromkeys(PipelineStatus.__struct_fields__), **NO_FACTS, **facts})
    return PipelineNow(0, "c", PipelineReading(0, status, tuple(keys), None if letters is None else tuple(letters)))


NO_FACTS = {"pipeline": "billing", "checkpoint": "/c", "topics": (), "queues": ()}


def waiting_key(key: str, messages: int, state: str = "parked") -> WaitingKey:
    return WaitingKey(key, "shard", state, "boom", messages, 3, NOW, None, None)


def letter(offset: int, state: DeadLetterState = DeadLetterState.OPEN) -> DeadLetterRecord:
    place = ("orders", "b", 0, offset)
    return DeadLetterRecord(
        f"orders/b/0/{offset}", *place, "order-7", None, None, NOW, state, "no address", attempts=1, batch=1
    )


def test_home_names_groups_without_a_member_beside_parked_keys() -> None:
    now = replace(snapshot(0, replace(group(0, 5), members=())), parked=(parked(),))
    stuck = home_view(now, Trends(), None).tiles[1]
    assert stuck.answer == "1 key, 1 group"
    assert stuck.detail == (
        "3 messages parked until you redrive or discard; 1 group has messages to process and no member online"
    )


def test_a_group_that_a_query_reports_needs_no_member() -> None:
    """It is not stuck while its pipeline runs, and as the pipeline when that does not."""
    now = snapshot(0, replace(group(0, 5), members=(), reported=True))
    assert home_view(now, Trends(), None).tiles[1].answer == "Nothing"
    (row,) = group_rows(now, Trends())
    assert row.state == "query"
    stopped = pipeline(lag=5, group="shipping")
    assert home_view(now, Trends(), None, [stopped]).tiles[1].answer == "1 pipeline"


def test_home_counts_what_waits_in_pipelines_and_does_not_call_an_unread_one_well() -> None:
    keys = [waiting_key(f"p{number}", 8) for number in range(5)] + [waiting_key(name, 3, "gap") for name in "ab"]
    waits = pipeline(keys=keys, letters=[letter(1), letter(2), letter(3), letter(4, DeadLetterState.SETTLED)])
    _, stuck, _, failed, _ = home_view(snapshot(0), Trends(), None, [waits]).tiles
    assert (stuck.answer, stuck.detail, stuck.level) == (
        "5 keys",
        "40 messages parked until you redrive or discard",
        "bad",
    )
    assert (failed.answer, failed.detail) == ("7 keys, 3 dead letters", "2 held for a retry, 5 parked")
    _, stuck, _, failed, _ = home_view(snapshot(0), Trends(), None, [pipeline(NOT_IN_TIME)]).tiles
    assert (stuck.answer, stuck.detail, stuck.level) == ("Unknown", "pipeline c was not read", "none")
    assert (failed.answer, failed.level) == ("Unknown", "none")


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "UTC"), ("Asia/Kolkata", "UTC+05:30"), ("America/Lima", "UTC-05:00")]
)
def test_the_zone_of_the_times_is_named(zone: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert time_zone(NOW) == shown
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_held_key_does_not_make_its_group_late() -> None:
    """The answer is about the messages that are handled now; the oldest key that waits stands beside."""
    held = group(7, 1_000, finished=977, late_ms=120_000)
    (queue,) = held.queues
    now = replace(held, queues=(replace(queue, backlog_ms=400),))
    _, _, late, *_ = home_view(snapshot(0, now), Trends(), None).tiles
    assert (late.answer, late.level) == ("400 ms", "good")
    assert late.detail == "shipping: 16 behind; its oldest held key: 2 min"
    _, _, late, *_ = home_view(snapshot(0, held), Trends(), None).tiles
    assert (late.answer, late.level, late.detail) == ("2 min", "warn", "shipping: 16 behind"), "all are late"


def test_a_pipeline_that_stands_still_is_stuck_and_late() -> None:
    still = pipeline(lag=151, lag_seconds=240.0)
    _, stuck, late, *_ = home_view(snapshot(0, group(5, 5)), Trends(), None, [still]).tiles
    assert (stuck.answer, stuck.level, stuck.link) == ("1 pipeline", "warn", "/pipelines")
    assert stuck.detail == "pipeline billing does not run and has messages to process"
    assert (late.detail, late.level, late.link) == ("pipeline billing: 151 behind", "warn", "/pipelines")
    running = pipeline(lag=151, lag_seconds=2.0, running="host, process 7")
    _, stuck, late, *_ = home_view(snapshot(0, group(5, 5)), Trends(), None, [running]).tiles
    assert (stuck.level, late.level, late.detail) == ("good", "good", "pipeline billing: 151 behind")


def test_a_pipeline_that_commits_as_a_group_is_counted_once() -> None:
    name = group(0, 5).name
    now = snapshot(0, replace(group(0, 5), members=()))
    stuck = home_view(now, Trends(), None, [pipeline(lag=5, group=name)]).tiles[1]
    assert stuck.answer == "1 group"


def test_a_list_of_waiting_keys_says_that_it_is_not_complete_and_whose_keys_are_missing() -> None:
    unknown = tuple(UnknownMember("shipping", f"worker-{number}", "no answer within 50 ms") for number in range(7))
    view = waiting_view(replace(snapshot(0), unknown=unknown), [pipeline(keys=[waiting_key("a", 1)])])
    (members,) = view.notes
    assert members.startswith("The list is not complete: keys that members of group shipping hold are missing.")
    assert "worker-0: no answer within 50 ms" in members
    assert "and 2 other members" in members
    assert view.parked == 1
    spark = waiting_view(replace(snapshot(0), unknown=unknown), [pipeline(group="shipping")])
    assert spark.notes == (), "keys of a pipeline are in its checkpoint, not in the members of its group"
    screen = group_view("shipping", replace(snapshot(0, group(0, 5)), unknown=unknown), Trends())
    assert screen is not None
    assert screen.notes == (members,)


def test_a_page_lists_the_first_thousand_keys_counts_all_and_says_so() -> None:
    lanes = tuple(replace(parked(), key=f"order-{number}") for number in range(MAX_LISTED + 7))
    view = waiting_view(replace(snapshot(0), parked=lanes))
    assert (len(view.rows), view.parked) == (MAX_LISTED, MAX_LISTED + 7)
    screen = group_view("shipping", replace(snapshot(0, group(0, 5)), parked=lanes), Trends())
    assert screen is not None
    assert (len(screen.waiting), screen.row.parked) == (MAX_LISTED, MAX_LISTED + 7)
    for notes in (view.notes, screen.notes):
        assert "it has the first 1,000 of 1,007 keys, those that need a person first" in notes[0]


def test_a_key_that_is_held_in_its_member_and_at_the_broker_is_listed_once() -> None:
    state = LaneStateView("held", "key", head=QueueOffset(18))
    held = (HeldLaneView("shipping", "w", QUEUE, "order-7", state), HeldLaneView("shipping", "w", QUEUE, "a", state))
    now = replace(snapshot(0), parked=(parked(LaneStatus.HELD),), held=held)
    assert [row.key for row in waiting_view(now).rows] == ["order-7", "a"], "what waits for longest comes first"
    assert waiting_keys(now.parked, now.held) == {("shipping", False): 2}


@pytest.mark.parametrize(
    ("offsets", "ends", "said"),
    [
        ([0, 50], [100, 110], "1.5 s"),
        ([0, 50], [100, 140], "9.0 s"),
        ([0, 50], [100, 150], "not shrinking"),
        ([0, 50], [100, 200], "growing"),
        ([100, 200], [100, 200], "–"),
    ],
)
def test_a_lag_is_drained_at_the_net_rate(offsets: list[int], ends: list[int], said: str) -> None:
    """Fifty messages are finished in a second; those that arrive in it count against them."""
    trends = Trends()
    for second in (0, 1):
        trends.add(snapshot(second * 1000, group(offsets[second], ends[second])))
    (row,) = group_rows(snapshot(1000, group(offsets[1], ends[1])), trends)
    assert row.drained_in == said


def test_an_unknown_lag_is_neither_zero_nor_hidden_behind_a_small_one() -> None:
    known, at = group(0, 3, late_ms=2000), group(0, 4).queues[0].at
    unknown = replace(known, name="billing", queues=(QueueBacklog(at, None, None, age_unknown=True),))
    late = next(tile for tile in home_view(snapshot(1, known, unknown), Trends(), None).tiles if tile.name == "Late")
    assert (late.answer, late.level) == ("Unknown", "none")
    assert "billing: 4 behind" in late.detail
    trends = Trends()
    trends.add(snapshot(1, known))
    trends.add(snapshot(1000, known, unknown))
    assert plot_series(list(trends.samples))["late"] == [2.0, None]
    assert lag_series("billing", list(trends.samples))["late"] == [None, None]
    assert [row.lag_seconds for row in group_rows(snapshot(1, known, unknown), trends)] == [2.0, None]
    assert [lateness(each) for each in (None, 0, 2.0)] == ["unknown", "0 s", "2.0 s"]


def test_a_violation_is_red() -> None:
    assert levels(snapshot(0), OrderVerdict("violation", 10, 1, Millis(0)))["Order"] == "bad"


def test_messages_that_wait_only_for_the_commit_are_not_behind() -> None:
    """One held key at offset 10 keeps the committed offset there while hundreds above it are finished."""
    (row,) = group_rows(snapshot(0, group(10, 500, finished=489)), Trends())
    assert row.lag == 1


def test_the_size_of_a_topic_comes_from_the_mean_size_of_what_was_sent() -> None:
    counters = {'lanemq_messages_in_total{topic="orders"}': "4", 'lanemq_bytes_in_total{topic="orders"}': "1000"}
    now = snapshot(0, end=10)
    assert [row.size for row in topic_rows(now, Trends())] == [None]
    counted = replace(now, brokers=(BrokerView("b", "x", True, counters), BrokerView("a", "y", False, {})))
    assert [row.size for row in topic_rows(counted, Trends())] == [2500]


def test_a_new_topic_cannot_be_created_while_a_broker_is_away_or_if_it_would_need_two_queues() -> None:
    away, here = BrokerView("a", "x", True, {}, "refused"), BrokerView("b", "y", True, {})
    by_key = parse_new_topic("new", "4", "key")
    assert new_topic_view(by_key, replace(snapshot(0), brokers=(here,))).possible
    view = new_topic_view(by_key, replace(snapshot(0), brokers=(away, here)))
    assert (view.possible, view.away, view.queues) == (False, ("a",), 8)
    assert not new_topic_view(by_key, Snapshot(Millis(0), error="refused")).possible
    globally = parse_new_topic("new", "", "global")
    assert new_topic_view(globally, replace(snapshot(0), brokers=(here,))).queues == 1
    assert "needs one queue" in new_topic_view(globally, replace(snapshot(0), brokers=(here, here))).problem


def test_a_group_shows_its_dead_letters_and_not_those_of_others() -> None:
    dead = tuple(GroupDeadLetters(name, f"%DLQ%{name}", 3, NOW) for name in ("shipping", "other"))
    (row,) = group_rows(replace(snapshot(0, group(5, 5)), dead=dead), Trends())
    assert row.dead == 3


def test_a_group_counts_what_its_pipeline_holds_parks_and_gives_up() -> None:
    """The offset of such a group has passed it, and the brokers know nothing of it."""
    now = snapshot(0, group(5, 5), replace(group(5, 5), name="mail"))
    keys = [waiting_key("order-7", 2), waiting_key("a", 1, "gap"), waiting_key("b", 1, "gap")]
    letters = [letter(1), letter(2), letter(3)]
    own = pipeline(group="shipping", keys=keys, letters=letters)

    def counts(*pipelines: PipelineNow) -> list[tuple[int | None, ...]]:
        return [(row.held, row.parked, row.dead) for row in group_rows(now, Trends(), pipelines)]

    assert counts(own, pipeline(group="other", keys=keys, letters=letters)) == [(2, 1, 3), (0, 0, 0)]
    screen = group_view("shipping", now, Trends(), [own])
    assert screen is not None
    assert {row.key for row in screen.waiting} == {"order-7", "a", "b"}
    assert screen.row.pipeline_link == "/pipelines/0"
    unread = PipelineNow(0, "c", None, "the disk is away", own.status)
    assert counts(unread) == [(None, None, None), (0, 0, 0)]
    page = render_part("groups.html", rows=group_rows(now, Trends(), [unread]), notes=(), broker_error="")
    assert page.count('<span class="dim">unknown</span>') == 3
    assert counts(pipeline(group="shipping")) == [(0, 0, None), (0, 0, 0)], "a sink has its dead letters"


def test_groups_say_that_a_pipeline_which_was_never_read_may_be_one_of_them() -> None:
    never = pipeline("the disk is away")
    (note,) = never_read_notes([never, pipeline()])
    assert note.startswith("Pipeline c was not read: the disk is away. If it commits as a group, the keys")
    screen = group_view("shipping", snapshot(0, group(5, 5)), Trends(), [never])
    assert screen is not None
    assert screen.notes == (note,)


def test_messages_that_retention_deleted_too_early_are_on_the_home_page_and_on_that_of_their_group() -> None:
    lost = {'lanemq_unread_deleted_total{group="shipping",topic="orders"}': "7"}
    now = replace(snapshot(0, group(5, 5)), brokers=(BrokerView("b", "x", True, lost),))
    failed = next(tile for tile in home_view(now, Trends(), None).tiles if tile.name == "Failed")
    assert (failed.answer, failed.level, failed.link) == ("7 lost", "bad", "/groups/shipping")
    assert failed.detail == "shipping lost messages of orders: retention deleted them first"
    view = group_view("shipping", now, Trends())
    assert view is not None
    assert view.notes[0].startswith("Lost: retention deleted 7 messages of orders")


def test_requests_of_former_owners_come_from_the_metric_and_are_not_zero_where_it_is_missing() -> None:
    name = 'lanemq_stale_requests_total{request="%s"}'
    told = BrokerView("b", "x", True, {name % "pull": "2", name % "commit": "3", "commitLogDiskRatio": "-1.0"})
    rows = broker_rows([told, BrokerView("away", "y", True, {}, "refused")])
    assert [(row.stale, row.disk_used) for row in rows] == [("5", NONE), (NONE, NONE)]


def test_rates_and_trends_come_from_the_snapshots() -> None:
    trends = Trends()
    assert trends.trend("shipping") is Trend.UNKNOWN
    for second in range(10):
        trends.add(snapshot(second * 1000, group(second * 5, second * 20), end=second * 20))
    assert trends.stored_rate("orders") == pytest.approx(20)
    assert trends.done_rate("shipping") == pytest.approx(5)
    assert trends.trend("shipping") is Trend.GROWING
    series = plot_series(list(trends.samples))
    assert series["stored"][1:] == [20.0] * 9
    assert series["finished"][1:] == [5.0] * 9
    for second in range(10, 80):
        trends.add(snapshot(second * 1000, group(180, 180), end=180))
    assert trends.trend("shipping") is Trend.STEADY


def test_the_course_of_a_lag_has_the_figures_of_its_plot_as_text() -> None:
    trends = Trends()
    trends.add(snapshot(0))  # the group is not known yet
    assert lag_course("shipping", trends.samples) is None
    for second in range(1, 150):
        late = None if second > 100 else second * 1000
        trends.add(snapshot(second * 1000, group(0, 900 if second == 77 else second, late_ms=late)))
    series = lag_series("shipping", list(trends.samples))
    assert {len(values) for values in series.values()} == {150}
    assert (series["behind"][:3], series["late"][:3]) == ([None, 1, 2], [None, 1.0, 2.0])
    course = lag_course("shipping", trends.samples)
    assert course is not None
    assert [(row.lag, row.lag_seconds) for row in course.rows] == [(149, 0.0), (89, 89.0), (29, 29.0), (1, 1.0)]
    assert course.most.lag == 900, "a peak between two rows is not lost"


def test_the_memory_is_bounded() -> None:
    trends = Trends()
    for second in range(1000):
        trends.add(snapshot(second, group(0, 0, owner=f"worker-{second}")))
    assert len(trends.samples) == 300
    assert len(trends.events) == 50


def test_events_say_who_took_which_queue_from_whom_and_what_was_parked() -> None:
    trends = Trends()
    trends.add(snapshot(0, group(0, 5)))
    after = snapshot(1, group(0, 5, owner="worker-2"))
    trends.add(replace(after, parked=(parked(),)))
    texts = [event.text for event in trends.events]
    assert texts == [
        "worker-2 took queue 0 of orders from worker-1, group shipping",
        "key order-7 is parked, group shipping: boom",
    ]
    trends.add(Snapshot(Millis(2), error="refused"))
    trends.add(Snapshot(Millis(3), error="refused"))
    assert [event.text for event in trends.events][2:] == ["the brokers cannot be reached: refused"]


def test_keys_that_need_a_person_come_first() -> None:
    lanes = (parked(LaneStatus.HELD), replace(parked(), key="a"), replace(parked(LaneStatus.REDRIVING), key="b"))
    assert [row.state for row in waiting_view(replace(snapshot(0), parked=lanes)).rows] == [
        "parked", "redriving", "held",
    ]  # fmt: skip


def progress(lane: LaneStateView | None, *, lane_parked: ParkedLaneView | None = None) -> KeyProgress:
    at = GroupQueue(QUEUE, QueueOffset(10), QueueOffset(30), "worker-1", Epoch(1))
    return KeyProgress("shipping", 1, QueueBacklog(at, None, None), 1, (12, 15, 20), lane_parked, lane)


@pytest.mark.parametrize(
    ("lane", "states"),
    [
        (LaneStateView("running", "key", head=QueueOffset(15)), ["done", "done", "running", "waiting"]),
        (LaneStateView("held", "key", head=QueueOffset(12)), ["done", "held", "waiting", "waiting"]),
        (LaneStateView("empty", "key", next_offset=QueueOffset(16)), ["done", "done", "done", "waiting"]),
        (None, ["done", "waiting", "waiting", "waiting"]),
    ],
)
def test_each_message_of_a_key_has_its_state(lane: LaneStateView | None, states: list[str]) -> None:
    assert [step_of(progress(lane), offset)[0] for offset in (5, 12, 15, 20)] == states


def test_messages_of_a_parked_lane_are_parked_whatever_the_offset_says() -> None:
    here = progress(None, lane_parked=parked())
    assert step_of(here, 18) == ("parked", "boom")
    assert step_of(here, 23) == ("parked", "behind offset 18")


def given_up(why: str) -> GroupDeadLetter:
    return GroupDeadLetter("shipping", cast(Message, SimpleNamespace(properties={LANE_WHY: why})))


def test_a_message_that_the_group_gave_up_is_a_dead_letter_and_not_done() -> None:
    here = replace(progress(None), dead={5: given_up("no address"), 6: given_up("")})
    assert step_of(here, 5) == ("dead letter", "no address")
    assert step_of(here, 6) == ("dead letter", "no reason given")
    assert step_of(here, 7) == ("done", "")
    assert step_of(here, 12)[0] == "waiting"


def in_pipeline(**more: str) -> KeyInPipeline:
    waiting = [WaitingMessage("orders", "b", 0, offset, None, 0, None, None) for offset in (12, 15)]
    held = HeldLane("order-7", "order-7", "s", WaitReason.PARKED, "boom", NOW, 3, None, tuple(waiting))
    return KeyInPipeline(
        pipeline(queues=(PipelineQueue("orders", "b", 0, 20),), group="shipping"),
        LaneState("order-7", "s", None, None, None, held),
        [letter(9), letter(10, DeadLetterState.REDRIVEN)],
        **more,
    )


def test_a_pipeline_says_of_each_message_what_its_checkpoint_says() -> None:
    key = in_pipeline()
    assert [key.step(QUEUE, offset) for offset in (9, 12, 15)] == [
        ("dead letter", "no address"), ("parked", "boom"), ("parked", "behind offset 12"),
    ]  # fmt: skip
    assert [key.step(QUEUE, offset)[0] for offset in (10, 19, 20)] == ["done", "done", "waiting"]
    half_read = in_pipeline(problem=NOT_IN_TIME)
    assert [half_read.step(QUEUE, offset)[0] for offset in (12, 19)] == ["parked", "unknown"]
    assert KeyInPipeline(pipeline("the disk is away")).step(QUEUE, 3) == ("unknown", "the disk is away")


def test_a_pipeline_is_shown_instead_of_the_group_as_which_it_commits() -> None:
    facts = KeyFacts("order-7", QUEUE, QUEUE, [], [progress(None), replace(progress(None), group="other")])
    view = key_view(facts, 64, None, ClockPair(0, Millis(0)), {}, [in_pipeline()])
    assert [(lane.group, lane.state) for lane in view.groups] == [("other", "waiting"), ("pipeline billing", "parked")]
    assert view.groups[1].inspect == "/pipelines/0/key?key=order-7"
    former = pipeline(group="shipping").status
    unread = KeyInPipeline(PipelineNow(0, "c", None, NOT_IN_TIME, former))
    view = key_view(facts, 64, None, ClockPair(0, Millis(0)), {}, [unread])
    assert [lane.group for lane in view.groups] == ["other", "pipeline billing"], "nor is it while it is being read"


def test_a_key_is_not_done_if_unfinished_messages_were_not_searched() -> None:
    unsearched = replace(progress(None), pending=(), done=0, unsearched=range(10, 15), all_searched=False)
    (lane,) = key_view(KeyFacts("k", QUEUE, QUEUE, [], [unsearched]), 64, None, ClockPair(0, Millis(0)), {}).groups
    assert lane.state == "unknown"
    assert lane.sentence.startswith("Not known: offsets 10 to 14 of the queue may be of this key")


def key_page(*pipelines: KeyInPipeline, groups: Sequence[KeyProgress] = (), offset: int = 5) -> KeyView:
    """The page of a key with one message."""
    record = SimpleNamespace(sys_flag=0)
    facts = {"message_id": "m", "stored_at": NOW, "born_at": NOW, "tag": None, "stored_body": b"", "record": record}
    message = cast(Message, SimpleNamespace(queue=QUEUE, queue_offset=offset, **facts))
    return key_view(
        KeyFacts("k", QUEUE, QUEUE, [message], list(groups)), 64, None, ClockPair(0, Millis(0)), {}, pipelines
    )


def figures(view: KeyView) -> list[str]:
    """The figures of the last lane: done, pending, parked, dead letters."""
    text = render_part("key.html", view=view, found=(), asked="k")
    return re.findall(r"<dt>(?:Done|Pending|Parked|Dead letters)</dt><dd>([^<]*)</dd>", text)[-4:]


def test_figures_of_a_pipeline_that_was_not_read_are_unknown_and_not_zero() -> None:
    (lane,) = key_page(KeyInPipeline(pipeline("the disk is away"))).groups
    assert (lane.state, lane.sentence) == ("unknown", "Not known: the disk is away.")
    assert figures(key_page(KeyInPipeline(pipeline("the disk is away")))) == ["unknown"] * 4
    half_read = in_pipeline(problem=NOT_IN_TIME)
    assert figures(key_page(half_read)) == ["unknown", "unknown", "2", "unknown"], "what was read is shown"
    read = KeyInPipeline(pipeline(letters=[]))
    assert figures(key_page(read)) == ["0", "1", "0", "0"]
    assert figures(key_page(KeyInPipeline(pipeline()))) == ["0", "1", "0", "unknown"], "a sink has its dead letters"


def test_a_page_says_that_it_tries_again_to_read_a_pipeline() -> None:
    late = KeyInPipeline(pipeline(NOT_IN_TIME))
    (lane,) = key_page(late).groups
    assert lane.sentence == "Not known: its checkpoint was not read in time. The page tries again."
    (place,) = places_of(cast(Message, SimpleNamespace(queue=QUEUE, queue_offset=5)), [], [late])
    assert place.detail == "its checkpoint was not read in time: open the page again"


def test_a_group_is_not_called_done_while_it_may_be_that_of_a_pipeline_that_was_never_read() -> None:
    """The offset of such a group has passed what the pipeline parked."""
    done = replace(progress(None), pending=())
    unread = KeyInPipeline(pipeline(NOT_IN_TIME))
    lane, _ = key_page(unread, groups=[done]).groups
    assert (lane.state, lane.done) == ("unknown", None)
    said = "finished, unless this is the group of pipeline c, which was not read"
    assert lane.sentence == f"Not known: {said}."
    (stop,) = key_page(unread, groups=[done]).stops
    assert [(step.state, step.detail) for step in stop.steps] == [("unknown", said), ("unknown", NOT_IN_TIME)]
    (place, _) = places_of(cast(Message, SimpleNamespace(queue=QUEUE, queue_offset=5)), [done], [unread])
    assert (place.state, place.detail) == ("unknown", said)
    for known in (
        key_page(groups=[done]),
        key_page(KeyInPipeline(pipeline(group="other")), groups=[done]),
        key_page(unread, groups=[replace(done, lane=LaneStateView("empty", "key", next_offset=QueueOffset(30)))]),
    ):
        assert (known.groups[0].state, known.stops[0].steps[0].state) == ("done", "done")


def test_an_address_says_where_a_search_goes_on() -> None:
    older = Older({QUEUE: 12, MessageQueue("orders", "a b/c", 1): 0}, 17)
    query = parse_qs(older_query("orders", "paid", older))
    assert parse_older("orders", query["from"], query["until"][0]) == older
    with pytest.raises(InvalidOption, match="is not a place"):
        parse_older("orders", ["x"], "")


def test_a_search_has_named_words_and_words_of_the_body() -> None:
    found = parse_search('key:order-42 after:10m paid "by card"', NOW)
    minutes = 10 * 60 * 1000
    assert found == Search("order-42", after=round(NOW.timestamp() * 1000) - minutes, text="paid by card")
    with pytest.raises(InvalidOption, match="twice"):
        parse_search("key:a key:b", NOW)


@pytest.mark.parametrize("text", ["9999999d", "9999-12-31T23:59:59-12:00", "soon"])
def test_a_time_that_no_calendar_has_is_refused_as_a_position(text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        position(text, NOW)


def test_figures_are_written_for_people() -> None:
    assert [span(each) for each in (None, 0, 0.35, 3.21, 59, 240, 7200, 3 * 86400)] == [
        "–", "0 s", "350 ms", "3.2 s", "59 s", "4 min", "2 h", "3 days",
    ]  # fmt: skip
    assert [rate(each) for each in (None, 0, 2.34, 1200)] == ["–", "0/s", "2.3/s", "1,200/s"]
    assert [size(each) for each in (512, 1536, 3 * 2**30)] == ["512 B", "1.5 KiB", "3.0 GiB"]
    assert ago(500) == "now"


# plots


def drawn(times: Sequence[float], values: Sequence[float | None], *, whole: bool = False) -> Plot:
    found = plot({"time": times, "late": values}, [Drawn("late", "warn", "s")], whole=whole)
    assert found is not None
    return found


def test_a_plot_is_drawn_from_zero_to_a_little_above_its_highest_value_with_gaps() -> None:
    found = drawn([100, 101, 102, 103, 104], [0, 10, None, 5, None])
    assert found.lines[0].path == "M0 150h0L250 13.6M750 81.8h0"
    assert [(tick.at, tick.text) for tick in found.rows] == [(150, "0"), (81.8, "5"), (13.6, "10")]
    assert [point.split(" ")[::2] for point in found.points.split(";")] == [
        ["0", "0"],
        ["250", "10"],
        ["500", NONE],
        ["750", "5"],
        ["1000", NONE],
    ]


@pytest.mark.parametrize("high", [0, 0.3, 1, 7, 99, 12_345, 8_000_000])
def test_a_plot_has_a_few_round_ticks_and_those_of_things_are_whole(high: float) -> None:
    for whole in (False, True):
        ticks = [float(tick.text.replace(",", "")) for tick in drawn([0, 600], [0, high], whole=whole).rows]
        assert 1 < len(ticks) <= 6
        assert all(tick == int(tick) for tick in ticks) or not whole


@pytest.mark.parametrize("seconds", [1, 4, 7, 33, 61, 599, 3000])
def test_ticks_of_time_are_few_round_and_within_the_plot(seconds: int) -> None:
    columns = drawn([1_000_000_003, 1_000_000_003 + seconds], [1, 2]).columns
    assert len(columns) <= 7
    assert all(0 <= tick.at <= 100 for tick in columns)
    assert len({tick.text for tick in columns}) == len(columns)
    if seconds == 599:
        assert [int(tick.text[3:]) % 2 for tick in columns] == [0] * 5, "every second minute"


def test_a_plot_needs_two_samples_at_different_times() -> None:
    for times in ([], [5], [5, 5]):
        assert plot({"time": times, "late": [1] * len(times)}, [Drawn("late", "warn", "s")]) is None
