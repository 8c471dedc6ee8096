"""Memory of large answers, kept for the next ones.

glibc gives the free end of its heap back to the system, and a process that takes megabytes, frees them and takes them
again has every page of them made anew, and filled with zeros, each time: a quarter to a half of the CPU time of large
pulls, in reader and broker. The rule guarded here: what a process keeps is bounded, and whoever set glibc's own
variables is not overruled.
"""

import ctypes
import os
import sys
from collections.abc import Mapping

KEPT_BYTES = 32 * 1024 * 1024
"""Free bytes at the end of the heap that stay there. Less than a few answers are made anew each time; more is only
memory that nobody uses. Also the size from which a block is taken from the system by itself, so that an answer of the
largest size is not."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of malloc.h."""
_THEIR_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """From now on this process keeps `KEPT_BYTES`. False where it does not: another libc, or it was told otherwise."""
    if sys.platform != "linux" or any(name in environment for name in _THEIR_OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    # Setting one of them alone would fix the other at its small default.
    return all([mallopt(option, KEPT_BYTES) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)])
