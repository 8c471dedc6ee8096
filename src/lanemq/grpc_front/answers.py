"""Statuses, and which one an error is.

Clients act on few of them (docs/decisions/0046-grpc-front.md): `INVALID_RECEIPT_HANDLE` ends their attempts to
acknowledge, `TOO_MANY_REQUESTS` makes them wait, anything else is repeated after a second or raised to the program.
"""

from lanemq.model import errors
from lanemq.wire.grpc.messages import Code, Resource, Status

OK = Status(Code.OK, "OK")


class CallFailed(Exception):
    """A call is answered with this status."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.status = Status(code, text)


_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (errors.TopicNotFound, Code.TOPIC_NOT_FOUND),
    (errors.MessageTooLarge, Code.MESSAGE_BODY_TOO_LARGE),
    (errors.NotAllowed, Code.FORBIDDEN),
    (errors.BrokerBusy, Code.TOO_MANY_REQUESTS),
    (errors.BrokerReadOnly, Code.HA_NOT_AVAILABLE),
    (errors.MissingKey, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (errors.InvalidName, Code.ILLEGAL_TOPIC),
    (errors.UsageError, Code.BAD_REQUEST),
    (errors.InvalidOption, Code.BAD_REQUEST),
)


def status_of(error: errors.LaneError) -> Status:
    """The status of an error of the client engine."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL_SERVER_ERROR)
    return Status(code, str(error))


def name_of(resource: Resource | None, what: str) -> str:
    """The name of a topic or group of a request."""
    if resource is None or not resource.name:
        raise CallFailed(Code.BAD_REQUEST, f"the request names no {what}")
    if resource.namespace:
        raise CallFailed(Code.UNSUPPORTED, f"namespaces are not supported, and {what} {resource.name!r} has one")
    return resource.name
