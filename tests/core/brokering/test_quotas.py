"""What one party has is counted, and no party pays for another."""

from hypothesis import given
from hypothesis import strategies as st
from tests.core.brokering.consistency import check

from lanemq.core.brokering.quotas import GroupUse, OverQuota, Quota, Quotas
from lanemq.model.units import Millis

PARTIES, NAMES = st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", "z", "v", "w"])


def test_a_party_is_refused_at_its_limit_and_others_are_not() -> None:
    quotas = Quotas({Quota.GROUPS: 2})
    assert [quotas.set(Quota.GROUPS, "mallory", name, 1) for name in ("g1", "g2")] == [None, None]
    refused = quotas.set(Quota.GROUPS, "mallory", "g3", 1)
    assert refused == OverQuota(Quota.GROUPS, "mallory", 2)
    assert str(refused).startswith(
        "mallory may have 2 groups, and with this request it would have more: use existing groups"
    )
    assert quotas.set(Quota.GROUPS, "alice", "g3", 1) is None
    assert quotas.set(Quota.GROUPS, "mallory", "g3", 1) is None, "it exists; the first party pays"
    quotas.let_go(Quota.GROUPS, "g1")
    assert quotas.set(Quota.GROUPS, "mallory", "g4", 1) is None


def test_one_connection_is_refused_before_its_party() -> None:
    quotas = Quotas({Quota.HELD_PULLS: 5}, {Quota.HELD_PULLS: 2})
    assert quotas.add(Quota.HELD_PULLS, "mallory", "connection 1", 2) is None
    assert quotas.add(Quota.HELD_PULLS, "mallory", "connection 1", 1) == OverQuota(Quota.HELD_PULLS, "connection 1", 2)
    assert quotas.add(Quota.HELD_PULLS, "mallory", "connection 2", 2) is None
    assert quotas.add(Quota.HELD_PULLS, "mallory", "connection 3", 2) == OverQuota(Quota.HELD_PULLS, "mallory", 5)
    quotas.let_go(Quota.HELD_PULLS, "connection 1", 1)
    assert quotas.add(Quota.HELD_PULLS, "mallory", "connection 3", 2) is None


@given(st.lists(st.tuples(st.booleans(), PARTIES, NAMES, st.integers(1, 3))))
def test_sums_are_those_of_the_names(steps: list[tuple[bool, str, str, int]]) -> None:
    quotas = Quotas({Quota.LEASES: 6})
    for add, party, name, count in steps:
        if add:
            expected = quotas.over_with(Quota.LEASES, party, name, count)
            assert quotas.add(Quota.LEASES, party, name, count) == expected
        else:
            quotas.let_go(Quota.LEASES, name, count)
        check(quotas)


def test_the_longest_unused_groups_come_first() -> None:
    use = GroupUse(["old", "older"], now=Millis(0))
    use.used("old", Millis(50))
    use.used("new", Millis(100))
    assert use.unused_since(Millis(50), limit=10) == ["older", "old"]
    assert use.unused_since(Millis(50), limit=1) == ["older"]
    use.keep("older")
    assert "older" in use
    assert use.unused_since(Millis(99), limit=1) == ["old"]
    assert use.kept_since(Millis(0), limit=1) == ["older"]
    use.forget("older")
    assert use.unused_since(Millis(99), limit=10) == ["old"]
