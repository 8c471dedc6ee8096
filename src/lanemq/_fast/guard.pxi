# Included by every module here. It refuses to load if LANEMQ_PURE is set, and names the sources it was built from.

from libc.stdlib cimport getenv

cdef extern from *:
    const char *LANEMQ_SOURCES

cdef const char *_pure = getenv(b"LANEMQ_PURE")
if _pure != NULL and _pure[0] not in (0, 48):
    raise ImportError("LANEMQ_PURE is set")

SOURCES = LANEMQ_SOURCES.decode()

references = {}
# What the twins of this module fall back to, by their names in this module; `compiled` fills it.
