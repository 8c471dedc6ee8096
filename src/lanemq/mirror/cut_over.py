"""The cut-over: the last steps before producers and consumers are switched to the target, each with a check.

A step that fails ends the sequence; everything before it may be repeated. Nothing is switched here: the caller does it
when all steps have passed.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lanemq.clock import SystemClock
from lanemq.core.backoff import Backoff
from lanemq.mirror.copying import Mirror, MirrorOptions, MirrorReport
from lanemq.mirror.delayed import DelayedMessage, delayed_messages
from lanemq.mirror.ends import Side
from lanemq.mirror.positions import translate
from lanemq.mirror.verifying import compare
from lanemq.model.errors import BrokerBusy, LaneError, OrderError

DelayedChoice: TypeAlias = Literal["refuse", "wait", "leave"]
DELAYED_SECONDS = 0.5
"""Pause between two looks at the delayed messages."""


BUSY_TIMES, BUSY = 6, Backoff(first=0.2, factor=2.0, max=3.0)
"""How often a step is repeated that a busy broker refused, about 9 s in all, and the pauses."""


@dataclass(frozen=True, slots=True)
class CutOverStep:
    """One step of a cut-over, done or failed."""

    name: str
    passed: bool
    text: str


class CutOver:
    """Runs the steps: ready, producers, delayed, drained, verified, positions."""

    def __init__(
        self,
        options: MirrorOptions,
        groups: Collection[str] = (),
        *,
        seal: bool = False,
        quiet: float = 5.0,
        delayed: DelayedChoice = "refuse",
        report: Callable[[MirrorReport], object] = lambda _: None,
    ) -> None:
        """`seal` makes the source refuse sends; otherwise no message may arrive for `quiet` seconds.

        `delayed` says what happens if delayed messages wait at the source: the cut-over fails, waits until they are
        due, or leaves them behind.
        """
        self._options = options
        self._groups = groups
        self._seal = seal
        self._quiet = quiet
        self._delayed = delayed
        self._report = report

    def steps(self) -> Iterator[CutOverStep]:
        """Runs one step after the other, up to the first that fails."""
        every = (
            ("ready", self._ready),
            ("producers", self._producers),
            ("delayed", self._delays),
            ("drained", self._drained),
            ("verified", self._verified),
            ("positions", self._positions),
        )
        for name, run in every:
            try:
                passed, text = _repeated_while_busy(run)
            except LaneError as error:
                passed, text = False, str(error)
            yield CutOverStep(name, passed, text)
            if not passed:
                return

    def undo(self, *, force: bool = False) -> None:
        """Makes the source take messages again.

        `OrderError` if the target has messages that are no copies: its producers were switched, and keys would be in
        both places. `force` does not look.
        """
        if not force and (own := compare(self._options).not_copies):
            raise OrderError(
                f"the target has {own} messages that are not from this mirror, so producers send there: messages of "
                f"one key would be at both sides. Stop those producers first, then use --force"
            )
        with self._options.open_source() as source:
            _set_writable(source, self._options.topics, writable=True)

    def _ready(self) -> tuple[bool, str]:
        """Everything that can be found out before the source refuses sends."""
        Mirror(self._options).check()
        if self._delayed == "refuse" and (waiting := self._waiting()):
            return False, _still_delayed(waiting)
        return True, "both sides can be read, and the target can be written"

    def _producers(self) -> tuple[bool, str]:
        with self._options.open_source() as source:
            if self._seal:
                _set_writable(source, self._options.topics, writable=False)
                return True, "the source refuses sends to the topics"
            before = _ends(source, self._options.topics)
            time.sleep(self._quiet)
            arrived = sum(_ends(source, self._options.topics)) - sum(before)
        if arrived:
            return False, f"{arrived} messages arrived within {self._quiet:g} s: stop the producers, or use --seal"
        return True, f"no message arrived for {self._quiet:g} s"

    def _delays(self) -> tuple[bool, str]:
        while waiting := self._waiting():
            if self._delayed == "refuse":
                return False, _still_delayed(waiting)
            if self._delayed == "leave":
                return True, f"{len(waiting)} delayed messages stay at the source, and are not copied"
            time.sleep(DELAYED_SECONDS)
        return True, "no delayed message waits at the source"

    def _waiting(self) -> list[DelayedMessage]:
        with self._options.open_source() as source:
            return delayed_messages(source, self._options.topics)

    def _drained(self) -> tuple[bool, str]:
        report = Mirror(self._options, report=self._report).run(until_drained=True)
        return report.left == 0, f"{report.copied} messages copied, {report.left} left"

    def _verified(self) -> tuple[bool, str]:
        comparison = compare(self._options)
        if comparison.equal:
            return True, f"{comparison.messages} messages of {comparison.keys} keys are equal"
        if comparison.differences:
            return False, comparison.differences[0]
        return False, f"{comparison.not_copied} messages are not copied: does a producer still send?"

    def _positions(self) -> tuple[bool, str]:
        moved = translate(self._options, self._groups)
        groups = {each.group for each in moved}
        return True, f"{len(groups)} groups moved, {sum(each.left for each in moved)} messages left for them"


def _still_delayed(waiting: list[DelayedMessage]) -> str:
    last = max(0, max(each.due_ms for each in waiting) - SystemClock().wall()) / 1000
    return (
        f"{len(waiting)} delayed messages or retries wait at the source, the last for about {last:.0f} s, and would be "
        f"left behind: run this again then, wait for them with --delayed wait, or leave them with --delayed leave"
    )


def unseal(options: MirrorOptions) -> None:
    """Makes the target take messages again, after a cut-over in the other direction has sealed it."""
    with options.open_target() as target:
        _set_writable(target, options.topics, writable=True)


def _repeated_while_busy(run: Callable[[], tuple[bool, str]]) -> tuple[bool, str]:
    """The result of a step. Any step may be repeated: what a busy broker refuses, it takes a little later."""
    for attempt in range(BUSY_TIMES):
        try:
            return run()
        except BrokerBusy:
            time.sleep(BUSY.delay(attempt) / 1000)
    return run()


def _ends(source: Side, topics: Collection[str]) -> list[int]:
    return [source.admin.max_offset(queue) for topic in topics for queue in source.full_route(topic).subscribe]


def _set_writable(side: Side, topics: Collection[str], *, writable: bool) -> None:
    """Changes all topics, or none if a broker is away: that one would not learn of it."""
    for topic in topics:
        side.full_route(topic)
    for topic in topics:
        side.admin.set_writable(topic, writable=writable)
