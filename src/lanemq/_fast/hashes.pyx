# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twin of the hash that gives a key its queue. It matters for keys that are used once: the queues of others are cached.

The reference is in `core/sending/sharding.py`, with what it means.
"""

from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport getenv

from lanemq._fast import references

cdef extern from *:
    const char *LANEMQ_SOURCES
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef const char *_pure = getenv(b"LANEMQ_PURE")
if _pure != NULL and _pure[0] not in (0, 48):
    raise ImportError("LANEMQ_PURE is set")

SOURCES = LANEMQ_SOURCES.decode()


def text_hash(text):
    """Twin of `core.sending.sharding.text_hash`."""
    cdef Py_ssize_t size = 0, i
    cdef const unsigned char *units
    cdef uint32_t hashed = 0
    if type(text) is not str or not PyUnicode_IS_ASCII(text):
        return references["text_hash"](text)
    units = <const unsigned char *>PyUnicode_AsUTF8AndSize(text, &size)
    for i in range(size):
        hashed = 31 * hashed + units[i]
    return <int32_t>hashed


TWINS = {each.__name__: each for each in (text_hash,)}
