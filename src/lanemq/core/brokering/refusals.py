"""How often a broker refused something, by reason: plain numbers, for metrics and operators."""

from enum import Enum


class RefusalReason(Enum):
    """Why a connection or a request was refused. The value is the name in metrics."""

    CONNECTIONS = "connections"
    """As many connections as the broker accepts."""
    CONNECTIONS_PER_ADDRESS = "connections_per_address"
    NO_REQUEST = "no_request"
    """A connection that sent no request, no signed one or no TLS handshake in time; it was closed."""
    UNFINISHED_FRAMES = "unfinished_frames"
    """A connection with an unfinished request, closed because those of all clients took too much memory."""
    UNSENT_REPLIES = "unsent_replies"
    """A connection that did not read its replies, closed because those of all clients took too much memory."""
    NOT_ALLOWED = "not_allowed"
    """No signature, a wrong one, or a missing permission."""
    BODY = "body"
    """A body that cannot be read, is larger than its kind may be, or would look like stored records in the log."""
    QUOTA = "quota"
    """More of what `Quota` counts than one party or connection may have."""
    BUSY = "busy"
    """Too much waits for the disk."""
    LOW_SPACE = "low_space"
    """The disk has less free space than the watermark."""
    NO_DESCRIPTORS = "no_descriptors"
    """The process or the system has no file descriptor left."""


class RefusalCounts:
    """Refusals since the start of the broker."""

    def __init__(self) -> None:
        self.counts: dict[RefusalReason, int] = dict.fromkeys(RefusalReason, 0)

    def add(self, reason: RefusalReason) -> None:
        self.counts[reason] += 1
