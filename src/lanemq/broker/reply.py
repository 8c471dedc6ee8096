"""How a decision or an error becomes a response command."""

from lanemq.model.errors import BrokerRefused, CorruptRecord, InvalidName, LaneError, StorageError
from lanemq.net.server import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command, encode_response

_NOTHING: dict[str, str] = {}


def answer(peer: Peer, request: Command, ext: dict[str, str] = _NOTHING, body: bytes = b"") -> None:
    """Success; nothing is sent for a oneway request."""
    if not request.is_oneway:
        peer.send(encode_response(request.opaque, ResponseCode.SUCCESS, ext, body, None))


def answer_code(
    peer: Peer,
    request: Command,
    code: int,
    remark: str,
    ext: dict[str, str] = _NOTHING,
    body: bytes = b"",
) -> None:
    """Anything but success; nothing is sent for a oneway request."""
    if not request.is_oneway:
        peer.send(encode_response(request.opaque, code, ext, body, remark))


def answer_error(peer: Peer, request: Command, error: LaneError) -> None:
    """The response code a RocketMQ client understands best for this error."""
    remark = error.remark if isinstance(error, BrokerRefused) else str(error)
    answer_code(peer, request, code_for(error), remark)


def code_for(error: LaneError) -> int:
    """One error, one code; what is not listed is a system error."""
    match error:
        case BrokerRefused():
            return error.code
        case InvalidName():
            return ResponseCode.INVALID_PARAMETER
        case CorruptRecord():
            return ResponseCode.SYSTEM_ERROR
        case StorageError():
            return ResponseCode.SERVICE_NOT_AVAILABLE
        case _:
            return ResponseCode.SYSTEM_ERROR
