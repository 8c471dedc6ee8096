"""A query as a member of a consumer group: one owner per queue, hand-over in both directions, stale drivers fenced."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.spark.spark_driver import Checkpoint, Query, places, send, until, values

from lanemq import App, Message
from lanemq.client.admin.admin import Admin
from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.model.errors import GroupNotFound, LeaseLost
from lanemq.model.units import Millis, QueueOffset
from lanemq.spark.group.member_calls import MemberCalls
from lanemq.spark.group.membership import DriverMembership
from lanemq.spark.offsets import Bounds
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import ResponseCode

pytestmark = pytest.mark.slow


class Member:
    """A Python consumer of the same group that records what it handled."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.handled: list[tuple[int, int]] = []
        self.app = App(address, group=group)

        @self.app.ordered(topic)
        def handle(value: int, message: Message) -> None:
            self.handled.append((message.queue.queue_id, message.queue_offset))

        self.app.start()

    def stop(self) -> None:
        self.app.stop()

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def owners(address: str, group: str) -> dict[int, str]:
    with Admin(address) as admin:
        return {lease.queue.queue_id: lease.owner for lease in admin.locks(group)}


def membership_of(query: Query) -> DriverMembership:
    membership = query.reader._driver._membership
    assert membership is not None
    return membership


def freeze(query: Query) -> None:
    """The driver hangs and its connections are closed, which it does not notice yet."""
    membership = membership_of(query)
    membership._ended.set()
    assert membership._thread is not None
    membership._thread.join()
    membership._calls.close()


def me(query: Query) -> str:
    return membership_of(query).client_id


def test_a_single_query_owns_every_queue_and_stores_its_offsets(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker.address, topic, range(20))
    with Query(servers=broker.address, topic=topic, group=group) as query, Admin(broker.address) as admin:
        assert values(query.everything()) == list(range(20))
        assert set(owners(broker.address, group).values()) == {me(query)}
        assert sum(queue.offset for queue in admin.describe_group(group).queues) == 20
    assert owners(broker.address, group) == {}


def test_two_queries_of_a_group_never_read_the_same_queue(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker.address, topic, range(30))
    options = {"servers": broker.address, "topic": topic, "group": group}
    with Query(**options) as one, Query(**options) as two:
        one.everything()
        two.plan()

        def shared() -> bool:
            one.everything()
            two.everything()
            return len(set(owners(broker.address, group).values())) == 2

        until(shared)
        send(broker.address, topic, range(30, 90))
        first, second = one.everything(), two.everything()
        assert {queue for queue, _ in places(first)}.isdisjoint(queue for queue, _ in places(second))
        assert values([*first, *second]) == list(range(30, 90))


def test_a_query_that_joins_continues_where_a_consumer_stopped(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker.address, topic, range(40))
    with Member(broker.address, group, topic) as member:
        until(lambda: len(member.handled) == 40)
        with Query(servers=broker.address, topic=topic, group=group) as query:

            def shared() -> bool:
                query.everything()
                return me(query) in owners(broker.address, group).values()

            until(shared)
            mine = {queue for queue, owner in owners(broker.address, group).items() if owner == me(query)}
            assert len(mine) == 1
            send(broker.address, topic, range(40, 140))
            rows = query.everything()
            assert {queue for queue, _ in places(rows)} == mine
            until(lambda: len(member.handled) + len(rows) == 140)
            assert not set(places(rows)) & set(member.handled)


def test_a_driver_that_falls_silent_is_replaced_and_joins_again(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """Its connection stays open, as when its machine is frozen."""
    send(broker.address, topic, range(40))
    with Query(servers=broker.address, topic=topic, group=group) as query, Member(broker.address, group, topic):

        def shared() -> bool:
            query.everything()
            names = list(owners(broker.address, group).values())
            return len(set(names)) == 2 and me(query) in names

        until(shared)
        with membership_of(query)._lock:  # its thread waits for it
            until(lambda: len(found := owners(broker.address, group)) == 2 and me(query) not in found.values())
        until(shared)


def test_a_driver_without_queues_stays_a_member(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """It shows that it is alive without lock requests; a lease later it is still there."""
    options = {"servers": broker.address, "topic": topic, "group": group}
    send(broker.address, topic, range(4))
    with ExitStack() as stack:
        queries = [stack.enter_context(Query(**options)) for _ in range(3)]
        admin = stack.enter_context(Admin(broker.address))
        for query in queries:
            query.everything()
        began = time.monotonic()
        seen: list[int] = []
        while time.monotonic() < began + LANE_TIMES.broker_lease + 1:
            seen.append(len(admin.describe_group(group).members))
            time.sleep(0.1)
        assert set(seen[len(seen) // 2 :]) == {3}


def test_a_consumer_that_joins_gets_a_queue_only_when_the_running_batch_is_done(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    send(broker.address, topic, range(40))
    with Query(servers=broker.address, topic=topic, group=group) as query:
        assert query.plan()
        partitions = query.partitions()
        assert {each.queue.queue_id for task in partitions for each in task.ranges} == {0, 1}
        with Member(broker.address, group, topic) as member:
            until(lambda: len(membership_of(query)._wanted) == 1)
            rows = query.read(partitions)
            assert set(owners(broker.address, group).values()) == {me(query)}
            assert member.handled == []
            query.finish()

            def handed_over() -> bool:
                query.everything()
                return len(set(owners(broker.address, group).values())) == 2

            until(handed_over)
            send(broker.address, topic, range(40, 90))
            rows += query.everything()
            until(lambda: len(member.handled) + len(rows) == 90)
            assert not set(places(rows)) & set(member.handled)


def test_a_query_that_stops_gives_its_queues_back_at_once(broker: EmbeddedBroker, topic: str, group: str) -> None:
    query = Query(servers=broker.address, topic=topic, group=group)
    query.everything()
    query.stop()
    assert owners(broker.address, group) == {}, "no member waits for the end of a lease"
    with Member(broker.address, group, topic) as member:
        until(lambda: len(owners(broker.address, group)) == 2)
        send(broker.address, topic, range(10))
        until(lambda: len(member.handled) == 10)


def test_pulls_and_commits_of_a_stale_driver_are_refused(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """Two copies of one query: the old driver hangs, the new one takes over, the old one wakes up."""
    send(broker.address, topic, range(20))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group}
    old = Query(checkpoint, **options)
    assert old.plan()
    partitions = old.partitions()
    freeze(old)
    copy = Checkpoint()
    copy.ends = checkpoint.ends[:]
    with Query(copy, **options) as new:

        def took_over() -> bool:
            membership = membership_of(new)
            membership.join([topic])
            with membership._lock:
                membership._round()
            return set(owners(broker.address, group).values()) == {me(new)}

        until(took_over)
        assert membership_of(old).usable() == {}, "it stopped planning before it was refused"
        with pytest.raises(LeaseLost):
            old.read(partitions)
        with pytest.raises(LeaseLost):
            old.reader.latestOffset(_json(checkpoint.ends[-1]), old.reader.getDefaultReadLimit())
        assert values(new.everything()) == list(range(20))
        old.stop()


def test_a_batch_that_another_member_has_processed_is_not_repeated(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """The query dies in a batch, a consumer processes it, the query restarts: no message is read twice."""
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group}
    crashed = Query(checkpoint, **options)
    assert crashed.plan()
    crashed.partitions()
    freeze(crashed)
    crashed.stop()
    with Member(broker.address, group, topic) as member:
        until(lambda: len(member.handled) == 30)
    with Query(checkpoint, **options) as again:
        assert again.everything() == []
        send(broker.address, topic, range(30, 35))
        assert values(again.everything()) == [30, 31, 32, 33, 34]


@pytest.mark.parametrize("regained", ["before the next batch is planned", "after it"])
def test_a_part_of_a_batch_owned_by_another_member_is_left_to_it_and_not_skipped_later(
    broker: EmbeddedBroker, topic: str, group: str, regained: str
) -> None:
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "5s"}
    crashed = Query(checkpoint, **options)
    assert crashed.plan()
    crashed.partitions()
    freeze(crashed)
    crashed.stop()
    with Query(**options) as other, Query(checkpoint, **options) as again:
        # The other member joins and owns a queue, but has read nothing when the query restarts.
        until(lambda: other.plan() and len(owners(broker.address, group)) == 2)
        again.reader._driver._bounds()
        until(lambda: len(membership_of(other)._wanted) == 1)
        assert again.plan()
        rows = again.read(again.partitions())
        assert len({queue for queue, _ in places(rows)}) == 1
        if regained == "after it":
            again.finish()
            rows += again.everything()
        other.stop()
        until(lambda: len(membership_of(again).usable()) == 2)
        if regained != "after it":
            again.finish()
        rows += again.everything()
        assert values(rows) == list(range(30))


def crash_in_a_batch(checkpoint: Checkpoint, options: dict[str, str]) -> None:
    crashed = Query(checkpoint, **options)
    assert crashed.plan()
    crashed.partitions()
    freeze(crashed)
    crashed.stop()


def repeat_beside_another(again: Query, options: dict[str, str]) -> Sequence[Any]:
    """What a repeated batch reads while another member owns one of its queues and leaves without reading it."""
    with Query(**options) as other:
        until(lambda: other.plan() and len(owners(options["servers"], options["group"])) == 2)
        again.reader._driver._bounds()
        until(lambda: len(membership_of(other)._wanted) == 1)
        assert again.plan()
        partitions = again.partitions()
    assert len(partitions) == 1
    return partitions


def owning_both(checkpoint: Checkpoint, options: dict[str, str]) -> Query:
    query = Query(checkpoint, **options)
    query.reader._driver._bounds()
    membership_of(query).wait_for_share(Millis(60_000))
    return query


def test_messages_left_to_others_are_read_by_the_next_run_if_still_undone(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """Spark recorded the batch, and the query stopped before it planned another: only the broker has the note."""
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "5s"}
    crash_in_a_batch(checkpoint, options)
    with Query(checkpoint, **options) as again:
        rows = again.read(repeat_beside_another(again, options))
        checkpoint.finished += 1
    with owning_both(checkpoint, options) as unlucky:
        assert len(membership_of(unlucky).usable()) == 1, "nothing is planned before the start is known"
        unlucky.reader.latestOffset(_json(checkpoint.ends[-1]), unlucky.reader.getDefaultReadLimit())
        # Stopped before Spark could log the answer: the group's offset must not have moved.
    with owning_both(checkpoint, options) as third:
        rest = third.everything()
    assert set(values([*rows, *rest])) == set(range(30))
    assert {queue for queue, _ in places(rows)}.isdisjoint(queue for queue, _ in places(rest))
    with owning_both(checkpoint, options) as fourth:
        assert fourth.everything() == []


def test_a_part_left_to_others_that_the_repeated_batch_reads_is_read_once(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "5s"}
    crash_in_a_batch(checkpoint, options)
    with Query(checkpoint, **options) as again:
        repeat_beside_another(again, options)
    with owning_both(checkpoint, options) as third:
        assert values(third.everything()) == list(range(30))


def test_a_new_queue_in_a_repeated_batch_is_left_out_from_its_first_message(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    checkpoint.ends = ["{}"]
    options = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "5s"}
    crashed = owning_both(checkpoint, options)
    assert crashed.plan()
    crashed.partitions()
    freeze(crashed)
    crashed.stop()
    with Query(checkpoint, **options) as again:
        rows = again.read(repeat_beside_another(again, options))
        again.finish()
        membership_of(again).wait_for_share(Millis(60_000))
        rows += again.everything()
    assert values(rows) == list(range(30))


def test_a_batch_fails_if_the_broker_cannot_note_what_it_leaves_out(
    broker: EmbeddedBroker, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a broker that refuses offsets of unknown groups."""

    def refuse(*_: object) -> None:
        raise GroupNotFound(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")

    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "5s"}
    crash_in_a_batch(checkpoint, options)
    monkeypatch.setattr(MemberCalls, "note_left", refuse)
    with Query(checkpoint, **options) as again, pytest.raises(LeaseLost, match="leaves it to that member"):
        repeat_beside_another(again, options)


def test_a_query_that_stops_after_a_committed_batch_has_stored_its_end(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    send(broker.address, topic, range(30))
    options = {"servers": broker.address, "topic": topic, "group": group}
    with owning_both(Checkpoint(), options) as query:
        assert len(query.batch()) == 30
    with Admin(broker.address) as admin:
        assert sum(queue.offset for queue in admin.describe_group(group).queues) == 30


def test_stopping_does_not_store_a_batch_that_was_only_read(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """The batch is not done; the next run repeats it."""
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group}
    with owning_both(checkpoint, options) as query:
        assert query.plan()
        assert len(query.read(query.partitions())) == 30
    with owning_both(checkpoint, options) as query:
        assert values(query.everything()) == list(range(30))


def test_messages_processed_by_another_member_do_not_count_towards_a_limit(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group}
    with Query(checkpoint, **options) as query:
        query.everything()
    send(broker.address, topic, range(30))
    with Member(broker.address, group, topic) as member:
        until(lambda: len(member.handled) == 30)
    send(broker.address, topic, range(30, 35))
    with Query(checkpoint, **options) as query:
        query.reader._driver._bounds()
        until(lambda: len(membership_of(query).usable()) == 2)
        assert values(query.batch(ReadMaxRows(5))) == [30, 31, 32, 33, 34]


def test_messages_skipped_after_a_reset_of_the_group_are_logged_once(
    broker: EmbeddedBroker, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker does not distinguish a reset from another member's commit, so the query skips, with a warning."""
    send(broker.address, topic, [0] * 10)
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group}
    with owning_both(checkpoint, options) as query:
        assert len(query.batch(ReadMaxRows(4))) == 4
    with Admin(broker.address) as admin:
        admin.reset_offsets(group, topic, to="last")
    with owning_both(checkpoint, options) as query:
        assert query.everything() == []
    (warning,) = [each for each in caplog.messages if "the query skips" in each]
    assert f"group {group}: " in warning
    assert "the query is at offset 4, the group at 10: the query skips the 6 messages between" in warning


def test_a_queue_granted_after_its_bounds_were_read_starts_at_the_groups_offset(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """Another member moved on in between: an outdated end must not make the offset look like a deleted topic."""
    send(broker.address, topic, [0] * 10)
    with Admin(broker.address) as admin:
        admin.reset_offsets(group, topic, to="last")
    with owning_both(Checkpoint(), {"servers": broker.address, "topic": topic, "group": group}) as query:
        driver = query.reader._driver
        (busy,) = [queue for queue, end in driver.ends.items() if end == 10]
        old = {busy: Bounds(QueueOffset(0), QueueOffset(5))}
        standing, bounds = driver._readable({busy: QueueOffset(0)}, old)
        assert (standing[busy], bounds[busy].end) == (10, 10)


def test_a_batch_is_not_repeated_if_another_member_went_past_its_end(
    broker: EmbeddedBroker, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The query dies in a batch, a consumer processes it and later messages, the query restarts."""
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    options = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "5s"}
    crash_in_a_batch(checkpoint, options)
    send(broker.address, topic, range(30, 60))
    with Member(broker.address, group, topic) as member:
        until(lambda: len(member.handled) == 60)
    with owning_both(checkpoint, options) as again:
        assert again.everything() == []
    assert sum("the query skips" in each for each in caplog.messages) == 2, "one line per queue"


def test_losses_in_another_members_queues_are_not_reported(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """Its own position there is old, and retention may be past it; the owner has processed those messages."""
    options = {"servers": broker.address, "topic": topic, "group": group}
    old = Checkpoint()
    with Query(**options) as owner:
        owner.everything()
        old.ends = [json.dumps({topic: {"lanemq/0": 10**6, "lanemq/1": 10**6}})]
        with Query(old, **options) as query:
            assert query.batch() == []


def _json(text: str) -> dict[str, dict[str, int]]:
    loaded: dict[str, dict[str, int]] = json.loads(text)
    return loaded
