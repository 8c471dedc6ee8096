"""Keeps the memory of large replies for the next ones.

glibc returns the free end of its heap to the system. A process that allocates megabytes, frees them and allocates them
again pays for new zeroed pages each time: a quarter to a half of the CPU time of large pulls, in reader and broker.
What a process keeps is bounded, and glibc's own environment variables take precedence.
"""

import ctypes
import os
import sys
from collections.abc import Mapping

KEPT_BYTES = 32 * 1024 * 1024
"""Free bytes that stay at the end of the heap. Too small: pages are allocated again for each reply. Too large: unused
memory. Also the size from which a block is allocated separately; the largest reply is smaller."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of malloc.h."""
_THEIR_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Makes this process keep `KEPT_BYTES`; false if libc cannot, or if the environment sets other values."""
    if sys.platform != "linux" or any(name in environment for name in _THEIR_OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    # Setting one of them alone would fix the other at its small default.
    return all([mallopt(option, KEPT_BYTES) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)])
