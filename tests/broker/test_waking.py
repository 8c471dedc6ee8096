"""Many held pulls are answered in slices: in order, each once, and other work comes in between."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from tests.net.test_loop_slices import Ticking, iterations

from lanemq.broker.waking import MAX_TAG_CODES, HeldPull, Waking
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.log.appender import Arrival
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.serving.loop_slices import SLICE_NS, LoopSlices

A, B = frozenset({1}), frozenset({2})


class Waiting:
    """Held pulls of which ten are answered in one turn."""

    def __init__(self, share: float = 0.1) -> None:
        self.polls: LongPolls[HeldPull] = LongPolls()
        self.clock = Ticking()
        self.waking = Waking(self.polls, LoopSlices(asyncio.get_running_loop(), self.clock))
        self.answered: list[int] = []
        self._share = share

    def hold(
        self, number: int, *, offset: int = 0, tags: frozenset[int] | None = None, deadline: int = 100
    ) -> HeldPull:
        held = _Held(self, number)
        assert self.polls.hold(held, "T", 0, QueueOffset(offset), tags, Millis(deadline))
        return held

    def hold_many(self, count: int, *, offset: int = 0, tags: frozenset[int] | None = None) -> list[HeldPull]:
        return [self.hold(number, offset=offset, tags=tags) for number in range(count)]

    def arrive(self, max_offset: int = 1, tags: frozenset[int] = A) -> None:
        self.waking.arrived([Arrival("T", 0, max_offset, tags)])

    def wake(self, number: int) -> None:
        self.answered.append(number)
        self.clock.time += int(SLICE_NS * self._share)


class _Held:
    def __init__(self, waiting: Waiting, number: int) -> None:
        self._waiting = waiting
        self._number = number

    def wake(self) -> None:
        self._waiting.wake(self._number)


def on_loop(test: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(test())


def by_message(waiting: Waiting, _: list[HeldPull]) -> None:
    waiting.arrive()


def by_deadline(waiting: Waiting, _: list[HeldPull]) -> None:
    waiting.waking.expire(Millis(100))


def by_release(waiting: Waiting, pulls: list[HeldPull]) -> None:
    waiting.waking.release(pulls)


ways = pytest.mark.parametrize("answer", [by_message, by_deadline, by_release])


@ways
def test_one_turn_of_many_pulls_is_answered_at_once_and_the_rest_in_later_turns(
    answer: Callable[[Waiting, list[HeldPull]], None],
) -> None:
    async def test() -> None:
        waiting = Waiting()
        answer(waiting, waiting.hold_many(100))
        assert waiting.answered == list(range(10))
        await asyncio.sleep(0)
        assert waiting.answered == list(range(20))
        await iterations(12)
        assert waiting.answered == list(range(100))
        assert len(waiting.polls) == 0

    on_loop(test)


@ways
def test_without_turns_all_pulls_are_answered_in_one_piece(
    answer: Callable[[Waiting, list[HeldPull]], None],
) -> None:
    """Negative control of the test before: on a clock that stands still, no turn ends."""

    async def test() -> None:
        waiting = Waiting(share=0.0)
        answer(waiting, waiting.hold_many(100))
        assert waiting.answered == list(range(100))

    on_loop(test)


def test_what_happens_between_the_turns_neither_loses_nor_repeats_an_answer() -> None:
    async def test() -> None:
        waiting = Waiting()
        pulls = waiting.hold_many(100)
        waiting.arrive()
        waiting.waking.forget(pulls[50:60])  # their connection is closed
        waiting.waking.release(pulls[90:])
        waiting.hold(100, offset=1)
        waiting.arrive(2)
        waiting.hold(101, offset=2, deadline=50)
        waiting.waking.expire(Millis(50))
        waiting.waking.expire(Millis(100))
        await iterations(30)
        assert sorted(waiting.answered) == [*range(50), *range(60, 102)]
        assert waiting.answered[:10] == list(range(10))
        assert len(waiting.polls) == 0
        assert waiting.waking._arrived == {}

    on_loop(test)


def test_the_pulls_of_another_queue_are_answered_at_once_while_many_wait_for_their_turns() -> None:
    async def test() -> None:
        waiting = Waiting()
        waiting.hold_many(100)
        waiting.arrive()
        waiting.polls.hold(_Held(waiting, 1_000), "T", 1, QueueOffset(0), None, Millis(100))
        waiting.waking.arrived([Arrival("T", 1, 1, A)])
        assert waiting.answered == [*range(10), 1_000]

    on_loop(test)


def test_messages_that_arrive_between_the_turns_keep_their_tags() -> None:
    """Pulls that do not want them stay held."""

    async def test() -> None:
        waiting = Waiting()
        waiting.hold_many(20, tags=A)
        waiting.arrive()
        waiting.hold(20, tags=B)
        waiting.hold(21, tags=frozenset({3}))
        waiting.arrive(2, A)
        waiting.arrive(2, B)
        await iterations(10)
        assert sorted(waiting.answered) == list(range(21))
        assert len(waiting.polls) == 1
        waiting.hold_many(20)
        waiting.arrive(3)
        for number in range(MAX_TAG_CODES + 2):
            waiting.arrive(3, frozenset({10 + number}))
        await iterations(10)
        assert waiting.answered.count(21) == 1, "with too many tags to remember, every pull runs again"

    on_loop(test)


def test_looking_at_pulls_that_want_other_tags_takes_turns_too() -> None:
    async def test() -> None:
        waiting = Waiting()
        waiting.hold_many(50, tags=B)
        looks: list[int] = []
        waiting.clock.time, clock = 0, waiting.clock

        def look() -> int:
            looks.append(clock.time)
            clock.time += SLICE_NS // 10
            return clock.time

        waiting.waking._slices.nanoseconds = look
        waiting.arrive()
        assert len(looks) < 20
        await iterations(10)
        assert len(looks) > 50
        assert waiting.answered == []
        assert len(waiting.polls) == 50

    on_loop(test)
