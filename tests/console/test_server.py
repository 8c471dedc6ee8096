"""The console as a process: a signal ends it, and is no failure."""

import os
import signal

import pytest

from lanemq.console.server import listening_socket, serve
from lanemq.console.settings import ConsoleSettings
from lanemq.net.address import Address


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_console_without_an_error(number: signal.Signals) -> None:
    """Uvicorn raises the signal again at its end, which would end this process."""
    before = signal.getsignal(number)
    with listening_socket(Address("127.0.0.1", 0)) as listener:
        serve(ConsoleSettings("127.0.0.1:1"), listener, "token", lambda: os.kill(os.getpid(), number))
    assert signal.getsignal(number) is before
