"""Which filters of a topic can share a group, and which of them may own queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.brokering.consistency import check

from lanemq.core.brokering.members.group import ConnectionId, GroupHeartbeat, GroupSubscription
from lanemq.core.brokering.members.membership import FilterConflict, Membership
from lanemq.core.brokering.members.tag_filters import ALL, Relation, Tags, TopicFilters, compare, contains, shown
from lanemq.model.units import Millis

A, B, AB = frozenset("a"), frozenset("b"), frozenset("ab")
FILTERS = st.frozensets(st.sampled_from("abc"))
ONE, TWO = ConnectionId(1), ConnectionId(2)


@pytest.mark.parametrize(
    ("one", "other", "relation"),
    [
        (A, A, Relation.SAME),
        (ALL, ALL, Relation.SAME),
        (AB, A, Relation.WIDER),
        (ALL, AB, Relation.WIDER),
        (A, AB, Relation.NARROWER),
        (AB, ALL, Relation.NARROWER),
        (A, B, Relation.NEITHER),
    ],
)
def test_filters_are_compared_by_what_they_select(one: Tags, other: Tags, relation: Relation) -> None:
    assert compare(one, other) is relation


@given(FILTERS, FILTERS)
def test_a_filter_contains_another_if_it_selects_each_of_its_messages(one: Tags, other: Tags) -> None:
    def selects(tags: Tags, tag: str) -> bool:
        return not tags or tag in tags

    assert contains(one, other) is all(selects(one, tag) for tag in "abcd" if selects(other, tag))


@given(st.lists(FILTERS, max_size=6), FILTERS)
def test_a_filter_fits_if_it_can_be_compared_with_all_others(present: list[Tags], tags: Tags) -> None:
    filters, nested = TopicFilters(), list[Tags]()
    for each in present:
        if filters.misfit(each, None) is None:
            filters.add(each)
            nested.append(each)
            check(filters)
    fits = all(compare(tags, each) is not Relation.NEITHER for each in nested)
    assert (filters.misfit(tags, None) is None) is fits
    while nested:
        assert filters.widest is not None
        assert all(contains(filters.widest, each) for each in nested)
        filters.remove(nested.pop())
        check(filters)
    assert not filters


def test_a_long_filter_is_cut_in_texts() -> None:
    assert shown(ALL) == "*"
    assert shown(AB) == "a || b"
    assert len(shown(frozenset(map(str, range(1_000))))) == 200


def beat(table: Membership, connection: ConnectionId, name: str, tags: Tags, **more: object) -> FilterConflict | None:
    subscription = GroupSubscription("t", tags=tags, ordered=True)._replace(**more)
    groups = {"g": GroupHeartbeat((subscription,))}
    found = table.filter_conflict(name, groups)
    if found is None:
        table.heartbeat(connection, name, groups, now=Millis(0))
    check(table)
    return found


def test_a_member_that_changes_its_tags_is_not_compared_with_itself() -> None:
    table = Membership()
    assert beat(table, ONE, "A", A, version=1) is None
    assert beat(table, ONE, "A", B, version=2) is None
    assert table.widest("g", "t") == B
    assert beat(table, TWO, "B", A) == FilterConflict("g", "A", "t", B, A)


def test_only_members_with_the_widest_filter_share_a_topic() -> None:
    table = Membership()
    beat(table, ONE, "A", A)
    assert (table.members_of("g", "t"), table.waits("g", "t", "A")) == (("A",), False)
    beat(table, TWO, "B", AB)
    assert (table.members_of("g", "t"), table.waits("g", "t", "A")) == (("B",), True)
    assert dict(table.narrower_members("g")) == {"t": 1}
    table.leave(TWO, "B", "g")
    assert table.members_of("g", "t") == ("A",)
    assert dict(table.narrower_members("g")) == {"t": 0}


@pytest.mark.parametrize("apart", [{"ordered": None}, {"shared": False, "ordered": None}, {"expression_type": "SQL92"}])
def test_filters_that_the_broker_cannot_keep_apart_do_not_count(apart: dict[str, object]) -> None:
    table = Membership()
    beat(table, ONE, "A", A, **apart)
    assert table.widest("g", "t") is None
    assert beat(table, TWO, "B", B) is None
    assert table.members_of("g", "t") == ("A", "B")


def test_a_retry_topic_goes_to_members_that_wait_for_no_topic() -> None:
    """A message in it may have a tag that a narrower member does not read."""
    table = Membership()
    for connection, name, tags in ((ONE, "A", A), (TWO, "B", AB)):
        subscribed = (GroupSubscription("t", tags=tags, ordered=False), GroupSubscription("%RETRY%g", ordered=False))
        table.heartbeat(connection, name, {"g": GroupHeartbeat(subscribed)}, now=Millis(0))
    assert table.members_of("g", "%RETRY%g") == ("B",)
    table.leave(TWO, "B", "g")
    assert table.members_of("g", "%RETRY%g") == ("A",)
