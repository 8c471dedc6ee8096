"""How large the body of each request may be: what takes milliseconds to decode would hold the event loop.

Sends have limits of their own, for each message (`handlers/send`) and for what waits for the disk.
"""

from lanemq.core.consuming.repeats import MAX_REPORTED
from lanemq.core.finished_ranges import MAX_RANGES
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command

KIBIBYTE = 1024
SMALL_BODY = 16 * KIBIBYTE
"""Every request may have a body of this size."""

_LIMITS: dict[int, int] = {
    RequestCode.HEART_BEAT: 128 * KIBIBYTE,
    RequestCode.LOCK_BATCH_MQ: 256 * KIBIBYTE,
    RequestCode.UNLOCK_BATCH_MQ: 256 * KIBIBYTE,
    RequestCode.UPDATE_CONSUMER_OFFSET: MAX_RANGES * 20 + MAX_REPORTED * 256,
    RequestCode.LANE_PARK: 256 * KIBIBYTE,
}
MAX_OBJECTS = 4_000
"""JSON objects in a body of these requests: an empty one takes three bytes, and as long to decode as a full one."""
_OF_OBJECTS = frozenset({RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ})
_UNLIMITED = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)


def body_problem(request: Command) -> str | None:
    """Why the body is too large; None if it is not."""
    if request.code in _OF_OBJECTS and request.body.count(b"{") > MAX_OBJECTS:
        return f"a body with more than {MAX_OBJECTS} objects is too large for request {request.code}"
    limit = _LIMITS.get(request.code, SMALL_BODY)
    if len(request.body) <= limit or request.code in _UNLIMITED:
        return None
    return f"a body of {len(request.body)} bytes is too large for request {request.code}: at most {limit} bytes"
