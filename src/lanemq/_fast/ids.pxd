cimport cython
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE


@cython.final
cdef class MessageIds:
    cdef bytes _prefix
    cdef uint32_t _number

    cdef inline uint32_t take(self) noexcept:
        """The number of the next id."""
        cdef uint32_t number = self._number
        self._number = number + 1
        return number

    cdef inline Py_ssize_t length(self) noexcept:
        return PyBytes_GET_SIZE(self._prefix) + 8

    cdef inline unsigned char *put(self, unsigned char *at, uint32_t number) noexcept:
        """Writes the id with this number; returns where it ends."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._prefix)
        cdef int digit
        memcpy(at, PyBytes_AS_STRING(self._prefix), size)
        at += size
        for digit in range(7, -1, -1):
            at[digit] = b"0123456789ABCDEF"[number & 15]
            number >>= 4
        return at + 8

    cdef str text(self, uint32_t number)
