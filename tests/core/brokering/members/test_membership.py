"""The members of a group, and the announcement of each change."""

from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.brokering.consistency import check

from lanemq.core.brokering.members.group import ConnectionId, GroupHeartbeat, GroupSubscription
from lanemq.core.brokering.members.membership import Changes, Conflict, Membership
from lanemq.model.units import Millis

ONE, TWO, THREE = ConnectionId(1), ConnectionId(2), ConnectionId(3)
NOTHING = Changes(())
CHANGED = Changes(("g",))


def topics(*names: str, version: int = 1) -> Mapping[str, GroupHeartbeat]:
    return {"g": GroupHeartbeat(tuple(GroupSubscription(name, version=version) for name in names))}


def beat(
    table: Membership,
    connection: ConnectionId,
    client_id: str,
    groups: Mapping[str, GroupHeartbeat] | None = None,
    now: int = 0,
    expiry: int | None = None,
) -> Changes:
    stated = None if expiry is None else Millis(expiry)
    said = topics("t") if groups is None else groups
    return table.heartbeat(connection, client_id, said, now=Millis(now), expiry=stated)


def test_new_member_is_announced_once() -> None:
    table = Membership()
    assert beat(table, ONE, "A") == CHANGED
    assert beat(table, ONE, "A") == NOTHING
    assert table.members("g") == ("A",)


def test_members_are_sorted_and_listed_once() -> None:
    """A client listed twice would get a second share of the queues, which no member consumes."""
    table = Membership()
    beat(table, TWO, "B")
    beat(table, ONE, "A")
    beat(table, THREE, "A")
    assert table.members("g") == ("A", "B")
    assert table.connections("g") == (ONE, TWO, THREE)


def test_reconnect_of_a_member_is_not_a_change() -> None:
    """The broker sees the new connection before it notices the end of the old one."""
    table = Membership()
    beat(table, ONE, "A")
    assert beat(table, TWO, "A") == NOTHING
    assert table.disconnected(ONE, now=Millis(0)) == NOTHING
    assert table.connected("A")
    assert table.disconnected(TWO, now=Millis(0)) == CHANGED
    assert not table.connected("A")


def test_disconnect_leaves_every_group_of_the_connection() -> None:
    table = Membership()
    both = {"g": GroupHeartbeat(()), "h": GroupHeartbeat(())}
    beat(table, ONE, "A", both)
    beat(table, TWO, "B", both)
    assert table.disconnected(ONE, now=Millis(0)) == Changes(("g", "h"))
    assert table.disconnected(ONE, now=Millis(0)) == NOTHING
    assert table.members("g") == table.members("h") == ("B",)
    assert table.client_of(ONE) is None


def test_leaving_one_group_keeps_the_other() -> None:
    table = Membership()
    beat(table, ONE, "A", {"g": GroupHeartbeat(()), "h": GroupHeartbeat(())})
    assert table.leave(ONE, "A", "g") == CHANGED
    assert table.leave(ONE, "A", "g") == NOTHING
    assert table.groups() == ("h",)
    assert table.client_of(ONE) == "A"


def test_silent_member_is_removed_after_two_minutes() -> None:
    table = Membership()
    beat(table, ONE, "A", now=0)
    beat(table, TWO, "B", now=30_000)
    assert table.expire(now=Millis(119_999)) == NOTHING
    assert table.expire(now=Millis(120_000)) == CHANGED
    assert table.expire(now=Millis(120_000)) == NOTHING
    assert table.members("g") == ("B",)


def test_heartbeat_postpones_the_removal() -> None:
    table = Membership()
    beat(table, ONE, "A", now=0)
    beat(table, TWO, "B", now=1)
    beat(table, ONE, "A", now=100_000)
    assert table.expire(now=Millis(120_000)) == NOTHING
    table.expire(now=Millis(120_001))
    assert table.members("g") == ("A",)


def test_a_member_that_states_its_expiry_is_removed_after_that_time() -> None:
    table = Membership()
    beat(table, ONE, "A", expiry=5_000)
    beat(table, TWO, "stock")
    assert table.expire(now=Millis(4_999)) == NOTHING
    assert table.expire(now=Millis(5_000)) == CHANGED
    assert table.members("g") == ("stock",)


def test_keep_alives_postpone_the_removal() -> None:
    table = Membership()
    beat(table, ONE, "A", expiry=5_000)
    for now in range(250, 60_000, 250):
        assert table.alive(ONE, "A", "g", now=Millis(now))
        assert table.expire(now=Millis(now)) == NOTHING
    assert table.expire(now=Millis(64_749)) == NOTHING
    assert table.expire(now=Millis(64_750)) == CHANGED


def test_the_keep_alive_of_a_removed_member_is_recognised_and_its_heartbeat_is_a_change() -> None:
    table = Membership()
    beat(table, ONE, "A", expiry=5_000)
    table.expire(now=Millis(5_000))
    assert not table.alive(ONE, "A", "g", now=Millis(9_000))
    assert table.members("g") == ()
    assert beat(table, ONE, "A", now=9_000, expiry=5_000) == CHANGED
    assert table.alive(ONE, "A", "g", now=Millis(9_250))


def test_a_keep_alive_counts_for_its_own_group_and_connection_only() -> None:
    """A new connection must send a heartbeat: its notices would otherwise go to the old one."""
    table = Membership()
    beat(table, ONE, "A", expiry=5_000)
    assert not table.alive(TWO, "A", "g", now=Millis(1))
    assert not table.alive(ONE, "A", "h", now=Millis(1))
    assert not table.alive(ONE, "B", "g", now=Millis(1))


def test_no_member_may_be_silent_for_longer_than_a_stock_client() -> None:
    table = Membership()
    beat(table, ONE, "A", expiry=500_000)
    assert table.expire(now=Millis(120_000)) == CHANGED


def test_the_time_in_which_the_broker_did_not_run_is_no_silence() -> None:
    table = Membership()
    beat(table, ONE, "A", now=0, expiry=5_000)
    beat(table, TWO, "B", now=900, expiry=5_000)
    table.paused(Millis(60_000), now=Millis(61_000))
    assert table.expire(now=Millis(64_999)) == NOTHING
    assert table.expire(now=Millis(65_000)) == CHANGED
    assert table.members("g") == ("B",)


def test_a_broker_that_pauses_all_the_time_still_removes_a_silent_member() -> None:
    table = Membership()
    beat(table, ONE, "A", expiry=5_000)
    beat(table, TWO, "B", expiry=5_000)
    removed = []
    for now in range(1_100, 20_000, 1_100):
        table.alive(TWO, "B", "g", now=Millis(now))
        table.paused(Millis(1_100), now=Millis(now))
        removed += [now] if table.expire(now=Millis(now)) == CHANGED else []
    assert removed == [6_600], "one pause is added to the silence"
    assert table.members("g") == ("B",)


def test_many_silent_members_of_a_group_are_one_change() -> None:
    table = Membership()
    beat(table, ONE, "A")
    beat(table, TWO, "B")
    assert table.expire(now=Millis(120_000)) == CHANGED
    assert table.groups() == ()


def test_newer_subscription_wins_and_an_older_one_does_not() -> None:
    table = Membership()
    new = {"g": GroupHeartbeat((GroupSubscription("t", "paid", version=2),))}
    old = {"g": GroupHeartbeat((GroupSubscription("t", "shipped", version=1),))}
    beat(table, ONE, "A", new)
    assert beat(table, ONE, "A", old) == NOTHING
    assert table.subscription("g", "t") == GroupSubscription("t", "paid", version=2)
    newest = {"g": GroupHeartbeat((GroupSubscription("t", "void", version=3),))}
    assert beat(table, ONE, "A", newest) == NOTHING
    assert table.subscription("g", "t") == GroupSubscription("t", "void", version=3)


def test_topics_not_named_any_more_are_removed_and_announced() -> None:
    table = Membership()
    beat(table, ONE, "A", topics("t", "u"))
    assert beat(table, ONE, "A", topics("t")) == CHANGED
    assert table.subscription("g", "u") is None
    assert beat(table, ONE, "A", topics("t")) == NOTHING
    assert beat(table, ONE, "A", topics("t", "v")) == CHANGED


def test_new_member_that_also_brings_a_topic_is_one_change() -> None:
    table = Membership()
    beat(table, ONE, "A", topics("t"))
    assert beat(table, TWO, "B", topics("t", "u")) == CHANGED


def test_a_topic_is_shared_among_the_members_that_subscribe_to_it() -> None:
    table = Membership()
    beat(table, ONE, "A", topics("t", "u"))
    beat(table, TWO, "B", topics("t", "v"))
    shares = [table.members_of("g", topic) for topic in "tuvw"]
    assert shares == [("A", "B"), ("A",), ("B",), ()]
    assert table.members("g") == ("A", "B"), "stock clients see all members, as in RocketMQ"
    assert table.members_of("h", "t") == ()


def test_members_with_different_topics_change_nothing_with_every_heartbeat() -> None:
    """RocketMQ keeps the topics of the last heartbeat, so every heartbeat of either member would be a change."""
    table = Membership()
    beat(table, ONE, "A", topics("t"))
    beat(table, TWO, "B", topics("u"))
    assert beat(table, ONE, "A", topics("t")) == NOTHING
    assert beat(table, TWO, "B", topics("u")) == NOTHING
    assert table.subscription("g", "t") == GroupSubscription("t", version=1)
    table.disconnected(TWO, now=Millis(0))
    assert table.subscription("g", "u") is None


def test_a_retry_topic_goes_to_members_that_have_all_topics() -> None:
    table = Membership()
    beat(table, ONE, "A", topics("t", "%RETRY%g"))
    beat(table, TWO, "B", topics("t", "u", "%RETRY%g"))
    assert table.members_of("g", "%RETRY%g") == ("B",)
    beat(table, ONE, "A", topics("v", "%RETRY%g"))
    assert table.members_of("g", "%RETRY%g") == ("A", "B"), "no member has all"


@pytest.mark.parametrize(("ordered", "queues"), [(False, 2), (True, 1), (None, 1)])
def test_a_retry_topic_has_a_queue_for_each_member_if_none_has_all_topics(ordered: bool | None, queues: int) -> None:
    """Only members that retry through it need that: ordered ones hold their lanes, stock clients pass nothing on."""
    table = Membership()
    assert table.retry_queues("g") == 1
    beat(table, ONE, "A", kinds(t=ordered, retry=ordered))
    assert table.retry_queues("g") == 1
    beat(table, TWO, "B", kinds(u=ordered, retry=ordered))
    assert table.retry_queues("g") == queues
    beat(table, TWO, "B", kinds(t=ordered, u=ordered, retry=ordered))
    assert table.retry_queues("g") == 1


def kinds(**ordered: bool | None) -> Mapping[str, GroupHeartbeat]:
    named = {"retry": "%RETRY%g"}
    return {"g": GroupHeartbeat(tuple(GroupSubscription(named.get(t, t), ordered=is_) for t, is_ in ordered.items()))}


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        (kinds(t=True), kinds(t=True), None),
        (kinds(t=True), kinds(t=False), Conflict("g", "A", "t", True)),
        (kinds(t=False), kinds(t=True), Conflict("g", "A", "t", False)),
        (kinds(t=True), kinds(u=False), Conflict("g", "A", None, True)),
        (kinds(t=True, retry=True), kinds(t=True, u=False, retry=False), None),
        (kinds(t=True, u=False), kinds(u=True), Conflict("g", "A", "u", False)),
        (kinds(t=True), kinds(t=None), None),
        (kinds(t=None), kinds(t=False), None),
    ],
    ids=["same", "concurrent", "ordered", "other topic", "adds a topic", "one of two", "stock", "with stock"],
)
def test_a_member_that_consumes_in_another_way_is_a_conflict(
    first: Mapping[str, GroupHeartbeat], second: Mapping[str, GroupHeartbeat], conflict: Conflict | None
) -> None:
    table = Membership()
    beat(table, ONE, "A", first)
    assert table.conflict("B", second) == conflict
    assert table.conflict("A", second) is None, "a member may change its own mind"
    table.disconnected(ONE, now=Millis(0))
    assert table.conflict("B", second) is None


def test_admin_view_shows_what_the_latest_heartbeat_said() -> None:
    table = Membership()
    beat(table, ONE, "A", {"g": GroupHeartbeat((), message_model="BROADCASTING")})
    view = table.snapshot("g")
    assert view is not None
    assert (view.members, view.message_model) == (("A",), "BROADCASTING")
    assert table.snapshot("unknown") is None


def test_an_unknown_group_has_no_members() -> None:
    table = Membership()
    assert table.members("g") == ()
    assert table.connections("g") == ()
    assert table.subscription("g", "t") is None


class MembershipMachine(RuleBasedStateMachine):
    """A change is announced if and only if the members of the group or of a topic, or whom they wait for, change."""

    connections = st.integers(1, 3).map(ConnectionId)
    groups = st.sets(st.sampled_from(["g", "h"]))

    def __init__(self) -> None:
        super().__init__()
        self.table = Membership(expiry_ms=10)
        self.now = Millis(0)
        self.before = self._views()

    @rule(
        connection=connections,
        client=st.sampled_from("AB"),
        groups=groups,
        subscribed=st.sets(st.just("t")),
        tags=st.sampled_from([None, frozenset("a"), frozenset("ab"), frozenset[str]()]),
        expiry=st.sampled_from([None, 3, 20]),
    )
    def heartbeat(
        self,
        connection: ConnectionId,
        client: str,
        groups: set[str],
        subscribed: set[str],
        tags: frozenset[str] | None,
        expiry: int | None,
    ) -> None:
        """Without tags it is a stock client."""
        ordered = None if tags is None else True
        named = tuple(GroupSubscription(topic, tags=tags or frozenset(), ordered=ordered) for topic in subscribed)
        said = dict.fromkeys(groups, GroupHeartbeat(named))
        self._compare(beat(self.table, connection, client, said, self.now, expiry))

    @rule(connection=connections, client=st.sampled_from("AB"), group=st.sampled_from("gh"))
    def keep_alive(self, connection: ConnectionId, client: str, group: str) -> None:
        if self.table.alive(connection, client, group, now=self.now):
            assert client in self.table.members(group)
        self._compare(NOTHING)

    @rule(duration=st.integers(0, 12))
    def pause(self, duration: int) -> None:
        self.now = Millis(self.now + duration)
        self.table.paused(Millis(duration), now=self.now)
        self._compare(self.table.expire(now=self.now))

    @rule(connection=connections)
    def disconnect(self, connection: ConnectionId) -> None:
        self._compare(self.table.disconnected(connection, now=self.now))
        assert self.table.client_of(connection) is None

    @rule(connection=connections, client=st.sampled_from("AB"), group=st.sampled_from("gh"))
    def leave(self, connection: ConnectionId, client: str, group: str) -> None:
        self._compare(self.table.leave(connection, client, group))

    @rule(passed=st.integers(0, 12))
    def tick(self, passed: int) -> None:
        self.now = Millis(self.now + passed)
        self._compare(self.table.expire(now=self.now))

    @invariant()
    def indexes_agree(self) -> None:
        check(self.table)

    def _views(self) -> dict[str, tuple[object, ...]]:
        table = self.table
        return {
            group: (
                table.members(group),
                table.members_of(group, "t"),
                [count for _, count in table.narrower_members(group) if count],
                None if (lost := table.waited_for(group, "t")) is None else lost.tags,
            )
            for group in "gh"
            if table.members(group)
        }

    def _compare(self, changes: Changes) -> None:
        before, self.before = self.before, self._views()
        expected = {group for group in "gh" if before.get(group) != self.before.get(group)}
        assert sorted(changes.groups) == sorted(expected)


TestMembershipMachine = MembershipMachine.TestCase
TestMembershipMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
