"""A consumer's event loop on a thread of its own, for programs without one."""

import asyncio
import logging
import threading
from collections.abc import Sequence

from lanemq.client.consumer_engine import ConsumerEngine
from lanemq.client.consumer_options import ConsumerOptions
from lanemq.client.lane_board import LaneBoard
from lanemq.client.station import StationPlan
from lanemq.model.errors import Closed

log = logging.getLogger(__name__)


class EngineThread:
    """Starts once, stops once."""

    def __init__(self, options: ConsumerOptions, plans: Sequence[StationPlan], shared: LaneBoard | None = None) -> None:
        self._options = options
        self._plans = plans
        self._shared = shared
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: ConsumerEngine | None = None
        self._error: BaseException | None = None

    @property
    def engine(self) -> ConsumerEngine:
        if self._engine is None:
            raise Closed("this consumer is not running: start it first")
        return self._engine

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise Closed("this consumer is not running: start it first")
        return self._loop

    def start(self) -> None:
        """Returns when the first queues were asked for; raises what made that impossible. A second start is
        refused: a member that ran twice would compete with itself (A20)."""
        if self._thread is not None:
            raise Closed("this consumer was started before: make a new one")
        self._thread = threading.Thread(target=self._run, name=f"lanemq-{self._options.group}", daemon=True)
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
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that starts or stops us
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine = ConsumerEngine(self._options, self._plans, self._shared)
        running = asyncio.create_task(engine.run())
        started = asyncio.create_task(_started(engine))
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if not running.done():
            self._ready.set()
        await running


async def _started(engine: ConsumerEngine) -> None:
    await engine.started.wait()
