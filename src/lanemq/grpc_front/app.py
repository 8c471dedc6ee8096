"""A front: its parts, and how they start and stop."""

import asyncio
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor

from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.security import security_of
from lanemq.clock import Clock, SystemClock
from lanemq.grpc_front.access import Access
from lanemq.grpc_front.figures import FrontHealth
from lanemq.grpc_front.options import FrontOptions
from lanemq.grpc_front.routes import Routes
from lanemq.grpc_front.sending import MessageSender
from lanemq.grpc_front.service import FrontService
from lanemq.grpc_front.transport import GrpcTransport
from lanemq.model.errors import InvalidOption
from lanemq.net.address import parse_addresses
from lanemq.net.serving.monitor import Monitor

log = logging.getLogger(__name__)

SEND_SECONDS = 10.0
"""How long a message may wait for its broker. Clients wait 3 s and send again, up to three times."""
END_SECONDS = 2.0
"""How long a stop waits for calls that are under way, when the queues are handed over."""
CLOSE_SECONDS = 3.0
"""How long it then waits for messages whose clients have given up."""


class Front:
    """`lanemq grpc` as an object. Started and stopped on one event loop, once."""

    def __init__(self, options: FrontOptions, clock: Clock | None = None) -> None:
        self.options = options
        self._clock = clock or SystemClock()
        self.access = Access(options.users)
        self.address = options.listen
        self.service: FrontService
        self._tidying: asyncio.Task[None] | None = None
        self.monitor: Monitor | None = None

    async def start(self) -> None:
        """Serves when it returns. Raises `OSError` if it cannot listen."""
        options, clock = self.options, self._clock
        # Each group may wait for the end of its member: Python's own executor has 6 threads on two cores.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(options.max_groups))
        self._producer = AsyncProducer(
            options.servers, clock=clock, group="lanemq-grpc", codec="bytes", max_body_bytes=options.max_body_bytes,
            delivery_timeout=SEND_SECONDS, timeout=SEND_SECONDS, on_queue_change="continue", history=options.history,
        )  # fmt: skip
        self._routes = Routes(parse_addresses(options.servers), security_of(), clock, options.advertise)
        sender = MessageSender(self._producer, clock)
        self.service = FrontService(options, self.access, self._routes, sender, secrets.token_hex(4), clock)
        self._transport = GrpcTransport(self.service, self.service.methods, max_body_bytes=options.max_body_bytes)
        self.address = await self._transport.start(options.listen, options.tls)
        self._tidying = asyncio.create_task(self.service.consumers.run())
        if options.monitor is not None:
            self.monitor = Monitor(options.monitor, FrontHealth(self.service))

    def reload(self) -> None:
        """Reads the users again; a file with a mistake is reported, and changes nothing."""
        try:
            self.access.reload()
        except InvalidOption as error:
            log.error("%s; the users from before stay", error)

    async def stop(self) -> None:
        """Hands the queues over, sends the clients to other fronts, and waits for messages that are being sent."""
        await self.service.consumers.drain()
        await self._transport.stop(END_SECONDS)
        if self._tidying is not None:
            self._tidying.cancel()
        await self._producer.close(CLOSE_SECONDS)
        self._routes.close()
        if self.monitor is not None:
            self.monitor.close()
