"""Waiting for a broker that is just being started.

A script starts a broker in the background and goes on with its next line. That line must not fail because the
broker needs half a second to open its log. Only a refused connection is waited for: it comes at once and says that
nobody listens yet, while any other failure says that something is wrong.
"""

import time
from collections.abc import Callable, Sequence

from lanemq.model.errors import ConnectFailed
from lanemq.net.address import Address
from lanemq.net.blocking import connect

PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.05


def wait_for_broker(servers: Sequence[Address], pause: Callable[[float], object] = time.sleep) -> None:
    """Returns when one of them listens, or when waiting is no use; the command itself then tells what is wrong."""
    for _ in range(round(PATIENCE_SECONDS / PAUSE_SECONDS)):
        if not all(map(_refuses, servers)):
            return
        pause(PAUSE_SECONDS)


def _refuses(address: Address) -> bool:
    try:
        connect(address).close()
    except ConnectFailed as error:
        return isinstance(error.__cause__, ConnectionRefusedError)
    return False
