"""When unfinished requests take too much memory, the connections of those that fill it are closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.net.serving.unfinished_frames import UnfinishedFrames

MIB = 1 << 20


def closed_by(frames: UnfinishedFrames[str]) -> list[str]:
    """The senders that are closed until all frames are within the limit."""
    closed = []
    while (first := frames.first_to_close()) is not None:
        closed.append(first)
        frames.note(first, "", 0, known=False, begun=False)
    return closed


class LargestFirst(UnfinishedFrames[str]):
    """The rule that hits a client with one large message."""

    def first_to_close(self) -> str | None:
        sizes = {sender: size for each in self._groups.values() for sender, size in each.items()}
        return max(sizes, key=lambda sender: sizes[sender]) if self.total > self.limit else None


def many_and_a_good_one(frames: UnfinishedFrames[str], *, known: bool, host: str) -> list[str]:
    """Fills the memory by 100 frames, then one client sends a larger message."""
    for number in range(100):
        frames.note(f"bad {number}", "1.1.1.1", frames.limit // 100, known=known, begun=True)
    assert closed_by(frames) == []
    frames.note("good", host, 10_000, known=known, begun=True)
    frames.note("good", host, MIB, known=known, begun=False)
    return closed_by(frames)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("host", ["1.1.1.1", "2.2.2.2"])
def test_a_large_message_is_finished_while_many_small_ones_fill_the_memory(known: bool, host: str) -> None:
    closed = many_and_a_good_one(UnfinishedFrames(10 * MIB), known=known, host=host)
    assert closed == [f"bad {number}" for number in range(len(closed))]
    assert closed, "the first ones are closed"


def test_a_rule_that_closes_the_largest_frame_hits_the_large_message() -> None:
    """Negative control of the test before."""
    assert many_and_a_good_one(LargestFirst(10 * MIB), known=False, host="2.2.2.2") == ["good"]


def test_connections_without_any_request_go_first_then_the_address_with_the_most() -> None:
    frames: UnfinishedFrames[str] = UnfinishedFrames(100)
    frames.note("large", "a", 50, known=True, begun=True)
    frames.note("old", "b", 20, known=True, begun=True)
    frames.note("unknown", "b", 20, known=False, begun=True)
    frames.note("new", "b", 40, known=True, begun=True)
    assert closed_by(frames) == ["unknown", "old"], "110 bytes without the first, 60 of them from b"
    frames.note("large", "a", 30, known=True, begun=True)
    frames.note("another", "a", 40, known=True, begun=True)
    assert closed_by(frames) == ["large"], "70 from a; it began its frame before"


def test_another_frame_of_a_connection_is_younger_than_the_frames_of_others() -> None:
    frames: UnfinishedFrames[str] = UnfinishedFrames(100)
    for sender in ("busy", "stuck"):
        frames.note(sender, "a", 50, known=True, begun=True)
    frames.note("busy", "a", 60, known=True, begun=True)
    assert closed_by(frames) == ["stuck"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.integers(0, 60), st.booleans(), st.booleans())
    )
)
def test_sums_are_those_of_the_frames(steps: list[tuple[str, str, int, bool, bool]]) -> None:
    frames: UnfinishedFrames[str] = UnfinishedFrames(100)
    for sender, host, size, known, begun in steps:
        frames.note(sender, host, size, known=known, begun=begun)
        check(frames)
        closed_by(frames)
        check(frames)
        assert frames.total <= 100


def check(frames: UnfinishedFrames[str]) -> None:
    assert frames._sums == {group: sum(frames.values()) for group, frames in frames._groups.items()}
    assert frames.total == sum(frames._sums.values())
    assert frames._group_of == {sender: group for group, frames in frames._groups.items() for sender in frames}
    assert all(size for frames in frames._groups.values() for size in frames.values())
