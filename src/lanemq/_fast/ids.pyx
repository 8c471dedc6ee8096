# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twin of the message ids. A plain message keeps the number of its id, and the text is written where it is needed.

The reference is in `client/identity.py`.
"""

include "guard.pxi"

from libc.stdint cimport uint32_t

cdef extern from *:
    object PyUnicode_New(Py_ssize_t size, int largest)
    void *PyUnicode_DATA(object text)


cdef class MessageIds:
    """Twin of `client.identity.MessageIds`."""

    def __init__(self, str prefix not None, uint32_t first_block):
        self._prefix = prefix.encode("ascii")
        self._number = first_block << 12

    def next(self):
        return self.text(self.take())

    cdef str text(self, uint32_t number):
        cdef object text = PyUnicode_New(self.length(), 127)
        self.put(<unsigned char *>PyUnicode_DATA(text), number)
        return <str>text


TWINS = {
    "client.identity.MessageIds": MessageIds,
}
