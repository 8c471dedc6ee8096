"""The front of `lanemq broker --grpc`: `lanemq grpc` as a child process, which is started again when it ends.

It is a new program, not a fork of the broker's process. If the broker is killed, it ends, too.
"""

import asyncio
import logging
import subprocess
import sys
from importlib.util import find_spec

from lanemq.broker.config import BrokerOptions
from lanemq.cli.errors import CliError
from lanemq.cli.listening import check_can_listen
from lanemq.cli.server.front import front_address
from lanemq.model.environment import install_extra
from lanemq.net.address import is_loopback
from lanemq.signals import ChildProcesses

log = logging.getLogger(__name__)

LOOK_SECONDS, PAUSE_SECONDS = 0.2, 1.0
"""How often the child is looked at, and the pause before it is started again."""
STOP_SECONDS = 20.0


class SupervisedFront:
    """Starts the front beside a broker, and keeps it running."""

    def __init__(self, listen: str, options: BrokerOptions) -> None:
        """Raises `CliError` for what would end every start of it."""
        self._listen = front_address(listen)
        self._options = options
        if find_spec("grpc") is None:
            raise CliError(f"--grpc needs the package grpcio: {install_extra('grpc')}")
        if options.users is not None and options.tls is None and not is_loopback(self._listen.host):
            raise CliError(f"--grpc {listen}: users on a network need TLS, because signatures can be used again")
        if options.tls is not None and options.tls.client_ca is not None:
            raise CliError(f"--grpc {listen}: the front does not ask its clients for certificates, as the broker does")
        check_can_listen(self._listen, "--grpc")
        self._children = ChildProcesses()
        self._child: subprocess.Popen[bytes] | None = None

    async def run(self, server: str, stop: asyncio.Event) -> None:
        """Keeps the front of the broker at `server` running until `stop` is set; returns when it has ended."""
        try:
            while not stop.is_set():
                if self._child is None or self._child.poll() is not None:
                    await self._start(server, stop)
                await _sleep(stop, LOOK_SECONDS)
        finally:
            await asyncio.to_thread(self._end)

    async def _start(self, server: str, stop: asyncio.Event) -> None:
        if self._child is not None:
            log.error("the gRPC front ended with code %s and is started again", self._child.returncode)
            await _sleep(stop, PAUSE_SECONDS)
        if not stop.is_set():
            self._child = self._children.start(self._words(server), stdin=subprocess.DEVNULL)

    def _words(self, server: str) -> list[str]:
        options, tls = self._options, self._options.tls
        words = [sys.executable, "-m", "lanemq.cli.main", "grpc", "--server", server, "--listen", str(self._listen)]
        if options.users is not None:
            words += ["--users", str(options.users)]
        if tls is not None:
            words += ["--cert", str(tls.cert), *(["--key", str(tls.key)] if tls.key is not None else [])]
        if options.history is not None:
            words += ["--history", str(options.history)]
        return words

    def _end(self) -> None:
        """Lets it hand over its queues."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._children.close()


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
