"""Makes sure that no earlier send can arrive at a target broker any more, before the target is read.

A mirror that was killed, or a session that ended with an error, may have left a send on its way: in a socket, in the
broker's send queue, or stored and not readable yet. Each is waited for. The order matters: register, then look for
others. Of two mirrors that do so at the same time, at least one sees the other.

What is stored and not readable cannot be asked for: in controller mode a broker shows messages to readers when its
replicas have confirmed them, and reports none that wait. So a marker is stored behind them. Replicas and readers get a
broker's log in its order, so when the marker is confirmed and readable, everything before it is too.

A LaneMQ broker recognises late sends by their stamps, so there a short wait is enough.
"""

import random
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import OrderError, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

ALONE_MS = Millis(180_000)
"""How long another mirror is waited for. A broker removes one that is dead at once, one that is frozen after 120 s."""
LANE_ALONE_MS = Millis(2_000)
IN_HAND_SECONDS = 1.0
"""For sends that a thread of the broker has taken from the queue and not stored yet."""
PAUSE_SECONDS = 0.05
READABLE_MS = Millis(60_000)


class AnotherMirror(OrderError):
    """Another mirror of this name runs: two would store messages twice."""


class FencedLink(Protocol):
    """What the fence asks of a connection to a broker (`ends.TargetLink`)."""

    broker: str
    is_lanemq: bool

    def others(self) -> list[str]: ...

    def runtime(self) -> dict[str, str]: ...

    def mark(self) -> int | None: ...

    def marked_end(self) -> int: ...

    def ends(self, queue: MessageQueue) -> tuple[int, int]: ...

    def close(self) -> None: ...


L = TypeVar("L", bound=FencedLink)


def wait_until_alone(
    connect: Callable[[], L], clock: Clock | None = None, sleep: Callable[[float], object] = time.sleep
) -> L:
    """A registered connection under whose producer group there is no other. Raises `AnotherMirror` after 3 minutes.

    Between attempts it closes the connection for a random time, so that two mirrors that start together do not keep
    each other waiting.
    """
    clock = clock or SystemClock()
    began = clock.now()
    while True:
        link = connect()
        try:
            others = link.others()
        except BaseException:
            link.close()
            raise
        waited = clock.now() - began
        if not others or (link.is_lanemq and waited >= LANE_ALONE_MS):
            return link
        link.close()
        if waited >= ALONE_MS:
            raise AnotherMirror(
                f"another mirror of this name writes to {link.broker}: {', '.join(others)}; stop it first"
            )
        sleep(random.uniform(1, 4) * PAUSE_SECONDS if waited < LANE_ALONE_MS else random.uniform(0.5, 2))


def wait_for_earlier_sends(
    link: FencedLink, clock: Clock | None = None, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Waits until the broker has stored or refused every send that it had received when this was called."""
    clock = clock or SystemClock()
    began = clock.now()
    while (oldest := _oldest_waiting(link.runtime())) is not None and oldest >= clock.now() - began:
        sleep(PAUSE_SECONDS)
    if not link.is_lanemq:
        sleep(IN_HAND_SECONDS)


def wait_until_confirmed(
    link: FencedLink, clock: Clock | None = None, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Waits until everything that the broker has stored is confirmed by its replicas and readable."""
    if link.is_lanemq:
        return
    clock = clock or SystemClock()
    began = clock.now()
    while (marker := link.mark()) is None:
        _check_time(link, clock.now() - began)
        sleep(PAUSE_SECONDS)
    while link.marked_end() <= marker:
        _check_time(link, clock.now() - began)
        sleep(PAUSE_SECONDS)


def wait_until_readable(
    link: FencedLink,
    queues: Iterable[MessageQueue],
    clock: Clock | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[MessageQueue, int]:
    """The end of each queue, once everything stored in it can be read."""
    clock = clock or SystemClock()
    began, ends = clock.now(), dict[MessageQueue, int]()
    while not link.is_lanemq and int(link.runtime().get("dispatchBehindBytes", 0)) > 0:
        _check_time(link, clock.now() - began)
        sleep(PAUSE_SECONDS)
    for queue in queues:
        readable, stored = link.ends(queue)
        while readable < stored:
            _check_time(link, clock.now() - began)
            sleep(PAUSE_SECONDS)
            readable, _ = link.ends(queue)
        ends[queue] = readable
    return ends


def _oldest_waiting(runtime: dict[str, str]) -> int | None:
    """For how long the oldest send has waited in the broker's queue, in ms; None if none waits."""
    if int(runtime.get("sendThreadPoolQueueSize", 0)) == 0:
        return None
    return int(runtime.get("sendThreadPoolQueueHeadWaitTimeMills", 0))


def _check_time(link: FencedLink, waited: int) -> None:
    if waited > READABLE_MS:
        raise RequestTimedOut(
            f"{link.broker} does not make stored messages readable: look at its log, and whether its replicas are up"
        )
