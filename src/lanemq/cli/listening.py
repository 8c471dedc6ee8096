"""Whether a command can listen on an address, and why not."""

import errno
import socket

from lanemq.cli.errors import CliError
from lanemq.net.address import Address

BIND_ERRORS = {
    errno.EADDRINUSE: "another program uses this port: stop it, or choose another port with --listen",
    errno.EADDRNOTAVAIL: "this machine does not have this address: use one of its own, or 127.0.0.1",
    errno.EACCES: "ports below 1024 need privileges: choose another one",
}


UNKNOWN_HOST = frozenset({socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL})
"""uvloop raises these as the `errno` of an OSError."""


def check_can_listen(address: Address, option: str = "--listen") -> None:
    """Raises `CliError` if the port is in use, so that a command that would fail later creates no folder before."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise cannot_listen(address, error, option) from error


def cannot_listen(address: Address, error: OSError, option: str = "--listen") -> CliError:
    """The error of a command that could not listen."""
    if isinstance(error, socket.gaierror) or error.errno in UNKNOWN_HOST:
        return CliError(f"{option} {address}: unknown host; use an address of this machine")
    why = BIND_ERRORS.get(error.errno or 0, str(error.strerror or error)).replace("--listen", option)
    return CliError(f"cannot listen on {address}: {why}")
