"""TLS on an event loop: reading its files never blocks other work on the loop."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certificates import new_authority

from lanemq.model.errors import TlsFailed
from lanemq.net.address import Address
from lanemq.net.calling.connection import open_connection
from lanemq.net.security import Security, TlsOptions

PATIENCE = 10.0
NOWHERE = Address("127.0.0.1", 1)


def end(pipe: Path, on_end: Callable[[], object]) -> bool:
    """Ends the read of the pipe and calls `on_end`; False if no reader has opened it yet."""
    try:
        writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    on_end()
    os.write(writing, b"no certificate")
    os.close(writing)
    return True


def test_a_file_that_is_slow_to_read_does_not_stop_the_loop(tmp_path: Path) -> None:
    """The file is a pipe into which the loop itself writes: if it were read there, it would wait for itself."""
    ca, written = tmp_path / "ca.pem", list[str]()
    ca.write_bytes(Path(new_authority(tmp_path, "another").ca).read_bytes())
    security = Security(TlsOptions(ca))
    ca.unlink()
    os.mkfifo(ca)

    async def main() -> None:
        connecting = asyncio.create_task(open_connection(NOWHERE, security=security))
        while not end(ca, lambda: written.append("by the loop")):  # noqa: ASYNC110 - nothing tells of a reader
            await asyncio.sleep(0.001)
        with pytest.raises(TlsFailed, match="holds no certificate in PEM format"):
            await connecting

    rescue = threading.Timer(PATIENCE, lambda: end(ca, lambda: written.append("by the rescue")))
    rescue.start()
    asyncio.run(asyncio.wait_for(main(), 3 * PATIENCE))
    rescue.cancel()
    rescue.join()
    assert written == ["by the loop"]
