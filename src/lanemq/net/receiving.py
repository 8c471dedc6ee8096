"""Where the bytes of a connection are received.

A large frame is received into the memory that becomes its body: copying a megabyte from buffer to buffer costs more
than reading it from the socket. Everything else goes into one buffer that all connections of a thread share, because
ten thousand idle connections with a buffer each would need gigabytes.
"""

import threading

from lanemq.wire.command import Frame, FrameDecoder

READ_BYTES = 256 * 1024
"""Size of the shared buffer. Smaller: more reads for many small frames. Larger: memory that stays in use for every
thread."""


FIRST_READ_BYTES = 16 * 1024
"""How much is read of a frame that is probably large (`FrameDecoder.large_next`): what is read here is copied twice,
the rest of the frame not at all. Smaller: several small frames that come instead take more reads."""


class _SharedBuffer(threading.local):
    """A thread's buffer. It is in use from `space_for` to `received`, between which the thread does nothing else."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))
        self.start = self.view[:FIRST_READ_BYTES]


_shared = _SharedBuffer()


def space_for(decoder: FrameDecoder) -> memoryview:
    """Where the next bytes of a connection belong."""
    if decoder.body is not None:
        return decoder.body.space()
    return _shared.start if decoder.large_next else _shared.view


def received(decoder: FrameDecoder, count: int) -> list[Frame]:
    """The frames that are complete now that `count` bytes were written to `space_for`; raises what `feed` raises."""
    return decoder.feed(bytes(_shared.view[:count])) if decoder.body is None else decoder.body_filled(count)
