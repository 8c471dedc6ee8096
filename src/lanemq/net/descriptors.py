"""File descriptors: how many the process may open, and how many of them connections may take.

Files come first: a broker that cannot open the next file of its log can store nothing, while one that refuses a
connection still serves all others.
"""

import logging
import resource

log = logging.getLogger(__name__)

MIN_CONNECTIONS = 16
"""Connections that are accepted however few descriptors there are."""


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
