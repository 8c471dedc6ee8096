"""Whatever is killed when: every message is at the target once, and in the order of its source queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mirror.simulated_copy import MIRROR, TOPIC, Session, Target, message, queues

from lanemq.client.message import Message
from lanemq.mirror.arrivals import Arrivals, LayoutChanged
from lanemq.mirror.queue_mapping import QueueMapping
from lanemq.model.queue import MessageQueue

keys = st.sampled_from(["a", "b", "c", "d", "e", None])
pages = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=6)
kill = st.tuples(pages, st.integers(0, 12), st.sampled_from(["lost", "stored", "late"]))
"""What a session reads, at which request it is killed, and what becomes of that request."""


def filled(count: int, sent: list[tuple[int, str | None]]) -> dict[MessageQueue, list[Message]]:
    """A source with so many queues. A key stays in one queue."""
    source: dict[MessageQueue, list[Message]] = {queue: [] for queue in queues("from", count)}
    places = list(source)
    for number, key in sent:
        queue = places[(number if key is None else ord(key)) % count]
        source[queue].append(message(queue, len(source[queue]), key))
    return source


def check(source: dict[MessageQueue, list[Message]], mapping: QueueMapping, target: Target) -> None:
    found = target.offsets()
    for queue, messages in source.items():
        for where in target.queues:
            expected = [each.queue_offset for each in messages if mapping.queue_for(queue, each.key) == where]
            assert found.get(where, {}).get(queue, []) == expected


@given(
    st.integers(1, 4), st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), keys), max_size=60),
    st.lists(kill, max_size=5), st.booleans(),
)  # fmt: skip
def test_each_message_is_stored_once_in_order_whatever_is_killed(
    here: int,
    there: int,
    sent: list[tuple[int, str | None]],
    kills: list[tuple[list[tuple[int, int]], int, str]],
    stamps: bool,
) -> None:
    source, target = filled(here, sent), Target(queues("to", there), stamps)
    mapping = QueueMapping(list(source), target.queues)
    late = None
    for plan, at, fate in kills:
        session = Session(source, mapping, target)
        if late is not None:
            target.store(late)  # after the target was read: only stamps help
            late = None
        for number, request in enumerate(session.requests(plan)):
            if number < at or (fate == "stored" and number == at):
                target.store(request)
            if number == at:
                late = request if fate == "late" and stamps else None
                break
    last = Session(source, mapping, target)
    if late is not None:
        target.store(late)
    last.drain()
    check(source, mapping, target)


def test_without_reading_the_target_messages_are_stored_twice() -> None:
    """The control of the test above."""
    source, target = filled(2, [(0, "a"), (0, "b"), (0, "a")]), Target(queues("to", 2), stamps=False)
    mapping = QueueMapping(list(source), target.queues)
    Session(source, mapping, target).drain()
    Session(source, mapping, target, read_target=False).drain()
    with pytest.raises(AssertionError):
        check(source, mapping, target)


def test_without_stamps_a_late_request_is_stored_twice() -> None:
    """Why a target without stamps needs the fence."""
    source, target = filled(1, [(0, "a"), (0, "a")]), Target(queues("to", 1), stamps=False)
    mapping = QueueMapping(list(source), target.queues)
    late = next(Session(source, mapping, target).requests([(0, 2)]))
    session = Session(source, mapping, target)
    target.store(late)
    session.drain()
    with pytest.raises(AssertionError):
        check(source, mapping, target)


@pytest.mark.parametrize("skipped", [0, 3, 7])
def test_reading_from_any_watermarks_on_gives_the_same_progress_as_reading_everything(skipped: int) -> None:
    source, target = filled(3, [(number, None) for number in range(40)]), Target(queues("to", 2), stamps=True)
    mapping = QueueMapping(list(source), target.queues)
    for request in Session(source, mapping, target).requests([(number, 3) for number in range(30)]):
        target.store(request)
    for queue in target.queues:
        texts = target.stored[queue]
        marked = [number for number, text in enumerate(texts) if "LANE_WATERMARKS" in text]
        whole, part = (Arrivals(MIRROR, TOPIC, mapping.counts, 1) for _ in range(2))
        for text in texts:
            whole.see(text)
        for text in texts[marked[min(skipped, len(marked) - 1)] :]:
            part.see(text)
        assert [part.reached(each) for each in source] == [whole.reached(each) for each in source]


def test_a_changed_number_of_queues_is_refused() -> None:
    source, target = filled(2, [(0, "a")]), Target(queues("to", 2), stamps=True)
    Session(source, QueueMapping(list(source), target.queues), target).drain()
    target.queues += queues("more", 1)
    target.stored[target.queues[-1]] = []
    with pytest.raises(LayoutChanged, match="from 2 to 2 queues and now has 2 and 3"):
        Session(source, QueueMapping(list(source), target.queues), target)


def test_copies_that_came_from_the_target_are_not_copied_back() -> None:
    queue = queues("from", 1)[0]
    copy = message(queue, 0, "a", f"LANE_ORIGIN\x01{MIRROR}:0:5:there\x02")
    other = message(queue, 1, "a", "LANE_ORIGIN\x01another:0:5:there\x02")
    target = Target(queues("to", 1), stamps=True)
    Session({queue: [copy, other]}, QueueMapping([queue], target.queues), target).drain()
    assert target.offsets() == {target.queues[0]: {queue: [1]}}


def test_expired_copies_start_a_new_epoch_so_that_new_messages_are_not_taken_for_repeats() -> None:
    source, target = filled(1, [(0, "a")] * 5), Target(queues("to", 1), stamps=True)
    mapping = QueueMapping(list(source), target.queues)
    Session(source, mapping, target).drain()
    arrivals = Arrivals(MIRROR, TOPIC, mapping.counts, 77)
    arrivals.begin((queue, 5) for queue in source)
    assert [arrivals.reached(queue) for queue in source] == [(5, 77, 0)]
