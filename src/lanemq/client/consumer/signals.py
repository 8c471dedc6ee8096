"""What Ctrl-C and SIGTERM mean: the first asks to finish, the second to stop at once."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None], stop_now: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` on the first signal and `stop_now` on the next; restores what was there before.

    Only the main thread may listen for signals; elsewhere this does nothing and the owner calls stop itself.
    """
    loop = asyncio.get_running_loop()
    seen = 0

    def received(number: int) -> None:
        nonlocal seen
        seen += 1
        name = signal.Signals(number).name
        if seen == 1:
            log.info("%s: finishing what runs, then stopping; once more to stop at once", name)
            stop()
        else:
            log.warning("%s again: stopping at once", name)
            stop_now()

    added = []
    try:
        for number in SIGNALS:
            loop.add_signal_handler(number, received, number)
            added.append(number)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        log.debug("signals are not listened for here: %s", error)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)
