"""Waits for a broker that is still starting.

A script may start a broker in the background and call `lanemq` in its next line, while the broker still opens its log.
Only a refused connection is retried, because it means that nothing listens on the port yet; any other failure is real.
"""

import time
from collections.abc import Callable, Sequence

from lanemq.model.errors import ConnectFailed
from lanemq.net.address import Address
from lanemq.net.calling.blocking import connect

WAIT_SECONDS = 2.0
PAUSE_SECONDS = 0.05


def wait_for_broker(servers: Sequence[Address], pause: Callable[[float], object] = time.sleep) -> None:
    """Returns when one of the servers does not refuse connections, at the latest after `WAIT_SECONDS`.

    It raises nothing: the command itself reports the error.
    """
    for _ in range(round(WAIT_SECONDS / PAUSE_SECONDS)):
        if not all(map(_refuses, servers)):
            return
        pause(PAUSE_SECONDS)


def _refuses(address: Address) -> bool:
    try:
        connect(address).close()
    except ConnectFailed as error:
        return isinstance(error.__cause__, ConnectionRefusedError)
    return False
