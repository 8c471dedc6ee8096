# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twin of the hash that gives a key its queue. It matters for keys that are used once: the queues of others are cached.

The reference is in `core/sending/sharding.py`, with what it means.
"""

include "guard.pxi"

from libc.stdint cimport int32_t, uint32_t


cdef extern from *:
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


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


TWINS = {
    "core.sending.sharding.text_hash": text_hash,
}
