"""File descriptors: how many the process may open, and how many of them connections may take.

Files come first: a broker that cannot open the next file of its log can store nothing, while one that refuses a
connection still serves all others.
"""

import logging
import resource
from collections.abc import Callable

log = logging.getLogger(__name__)

MIN_CONNECTIONS = 16
"""Connections that are accepted however few descriptors there are."""

OTHER_FILES = 128
"""Descriptors kept for state.db, checkpoints, certificates, the event loop, and files that are opened before
`DescriptorReserve` is asked again. A broker with one segment uses about 20, and 64 more during a checkpoint."""


def raise_soft_limit() -> int:
    """Raises the soft limit of open files to the hard one, which every process may; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems have a lower limit than they say
            log.warning("the limit of %s open files cannot be raised to %s: %s", soft, hard, error)
    return open_files_limit()


def open_files_limit() -> int:
    """How many descriptors this process may have; a very large number if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int, *, wanted: int, files: int) -> int:
    """How many connections fit into `limit` descriptors beside so many files."""
    return min(wanted, max(MIN_CONNECTIONS, limit - files))


class DescriptorReserve:
    """How many connections fit beside the files of a broker. Both the files and the limit of the process may change
    while it runs: the log grows by a file at a time, and an operator may change the limit (`prlimit`).
    """

    def __init__(self, *, wanted: int, files: Callable[[], int], limit: Callable[[], int] | None = None) -> None:
        """`wanted` is the number of connections that the options allow, `files` how many files are or may be open.

        `limit` is how many descriptors the process may have; None: ask the operating system.
        """
        self._wanted = wanted
        self._files = files
        self._given_limit = limit

    def _limit(self) -> int:
        return open_files_limit() if self._given_limit is None else self._given_limit()

    def connections(self) -> int:
        """How many connections there may be now."""
        return connections_within(self._limit(), wanted=self._wanted, files=self._files() + OTHER_FILES)

    def problem(self) -> str | None:
        """Why there may be fewer connections than wanted; None if there may be as many."""
        total = self.connections()
        if total >= self._wanted:
            return None
        return (
            f"at most {total} connections instead of {self._wanted}: this process may open {self._limit()} files, and "
            f"{self._files() + OTHER_FILES} are kept for data; raise the limit of open files (ulimit -n, LimitNOFILE)"
        )
