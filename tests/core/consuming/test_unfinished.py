"""Offsets leave in order, in whatever order the messages of a queue finish."""

from hypothesis import given
from hypothesis import strategies as st
from tests.core.consuming.scheduler_fixture import Msg

from lanemq.core.consuming.unfinished import UnfinishedOffsets


@given(st.sets(st.integers(0, 30)), st.permutations(range(12)), st.integers(0, 12))
def test_only_offsets_without_an_unfinished_one_before_them_are_passed(
    extra: set[int], order: list[int], first: int
) -> None:
    """In any order and any number of reports; offsets that a filter left out are missing in between."""
    there = sorted(extra | set(range(40, 52)))
    offsets = UnfinishedOffsets()
    offsets.add([Msg(at, size=2) for at in there])
    done = [there[at % len(there)] for at in dict.fromkeys(order)]
    for part in (done[:first], done[first:]):
        offsets.finish([Msg(at, size=2) for at in part])
    unfinished = [at for at in there if at not in done]
    assert offsets.first == (unfinished[0] if unfinished else None)
    assert offsets.offsets() == unfinished
    assert (len(offsets), offsets.bytes) == (len(unfinished), 2 * len(unfinished))
    assert offsets.finished_count == sum(at > unfinished[0] for at in done if unfinished)


def test_forgotten_offsets_do_not_stop_those_behind_them() -> None:
    offsets, messages = UnfinishedOffsets(), [Msg(at) for at in range(10)]
    offsets.add(messages)
    offsets.finish(messages[3:7])
    offsets.forget_finished()
    assert (offsets.finished_count, offsets.offsets()) == (0, [0, 1, 2, 7, 8, 9])
    offsets.finish([messages[8], *messages[:3]])
    assert (offsets.first, len(offsets), offsets.offsets()) == (7, 2, [7, 9])
    offsets.add([Msg(20)])
    offsets.finish([messages[7], messages[9]])
    assert (offsets.first, len(offsets), offsets.bytes) == (20, 1, 1)
