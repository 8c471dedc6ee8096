"""A consumer's event loop on a thread of its own, for programs without one."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence

from lanemq.client.consumer.engine import ConsumerEngine
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.scheduler import Scheduler
from lanemq.client.consumer.subscription import Subscription
from lanemq.client.consumer.termination import TERMINATION
from lanemq.model.errors import Closed, LaneError

log = logging.getLogger(__name__)


class EngineThread:
    """Starts once, stops once."""

    def __init__(
        self, options: ConsumerOptions, subscriptions: Sequence[Subscription], shared: Scheduler | None = None
    ) -> None:
        self._options = options
        self._subscriptions = subscriptions
        self._shared = shared
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: ConsumerEngine | None = None
        self._error: BaseException | None = None
        self._term: object | None = None
        self._finishing = False

    @property
    def engine(self) -> ConsumerEngine:
        if self._engine is None:
            raise Closed("this consumer is not running: start it first")
        self.check()
        return self._engine

    def check(self) -> None:
        """Raises what ended the consumer, if nobody asked it to end."""
        error = self._error or (self._engine.failure if self._engine is not None else None)
        if error is not None:
            raise ended_by(error)

    def _finish(self) -> None:
        self._finishing = True
        loop, engine = self._loop, self._engine
        if loop is not None and engine is not None:
            with contextlib.suppress(RuntimeError):  # the loop ended before
                loop.call_soon_threadsafe(engine.stop)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise Closed("this consumer is not running: start it first")
        return self._loop

    def start(self, *, finish_on_sigterm: bool = False) -> None:
        """Returns when the first queues were asked for; raises what made that impossible. A second start is
        refused: a member that ran twice would compete with itself (A20).

        `finish_on_sigterm`: the signal hands everything over first; see `termination`.
        """
        if self._thread is not None:
            raise Closed("this consumer was started before: make a new one")
        self._thread = threading.Thread(target=self._run, name=f"lanemq-{self._options.group}", daemon=True)
        if finish_on_sigterm:
            self._term = TERMINATION.listen(self._finish, again=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self, *, now: bool = False) -> None:
        """Hands everything over and waits for the end; raises what broke a worker, if one broke."""
        thread, loop, engine = self._thread, self._loop, self._engine
        if thread is None or loop is None or engine is None:
            return
        try:
            loop.call_soon_threadsafe(engine.stop_now if now else engine.stop)
        except RuntimeError:
            log.debug("the consumer's loop ended before it was asked to")
        thread.join()
        self._engine = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # raised again in the thread that starts or stops us
            self._error = error
            if self._ready.is_set():  # nobody may be waiting: the program could go on for days without a consumer
                log.critical("the consumer of group %s ended by an error", self._options.group, exc_info=error)
        finally:
            self._ready.set()
            TERMINATION.forget(self._term)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine = ConsumerEngine(self._options, self._subscriptions, self._shared)
        if self._finishing:  # the signal came before there was an engine to tell
            engine.stop()
        running = asyncio.create_task(engine.run())
        started = asyncio.create_task(_started(engine))
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if not running.done():
            self._ready.set()
        await running


def ended_by(error: BaseException) -> LaneError:
    """What a consumer's user is told when it ended without being asked."""
    failure = LaneError(f"this consumer ended by an error and consumes nothing any more: {error!r}; make a new one")
    failure.__cause__ = error
    return failure


async def _started(engine: ConsumerEngine) -> None:
    await engine.started.wait()
