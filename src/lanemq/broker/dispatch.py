"""Requests and answers: finds the handler of a request, and turns results and errors into responses."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Self

from msgspec.structs import asdict

from lanemq.broker.body_limits import SMALL_BODY, body_problem
from lanemq.clock import Clock, SystemClock
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.model.errors import (
    BrokerRefused,
    CorruptRecord,
    DiskFull,
    InvalidName,
    LaneError,
    NoDescriptors,
    StillRebuilding,
    StorageError,
)
from lanemq.net.rate_limited_log import FaultLog
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import (
    JSON,
    LARGE_FRAME_BYTES,
    RESPONSE_BIT,
    Command,
    encode_command,
    encode_response,
    response_head,
)
from lanemq.wire.loose_json import BodyError

log = logging.getLogger(__name__)

Handler = Callable[[Peer, Command], None]

_NO_FIELDS: dict[str, str] = {}

DONE = "done"
"""The outcome of a request that was answered with success. Others begin with `refused: ` (nothing was changed) or
`failed: ` (some of it may be changed), and the reason follows."""


class WatchedRequest(Command):
    """A request whose outcome is reported once: when it is answered, or when its answer is given up."""

    report: Callable[[str], None] | None = None

    @classmethod
    def of(cls, request: Command, report: Callable[[str], None]) -> Self:
        return cls(**asdict(request), report=report)

    def ended(self, outcome: str) -> None:
        """Report the outcome, unless one is reported already."""
        report, self.report = self.report, None
        if report is not None:
            report(outcome)


Watch = Callable[[Peer, Command], WatchedRequest]


class Dispatch:
    """Tables from request code to handler. A failing request is answered with an error; the connection stays open."""

    def __init__(
        self,
        tables: Iterable[Mapping[int, Handler]],
        replied: Handler,
        refusals: RefusalCounts | None = None,
        watched: Container[int] = frozenset(),
        watch: Watch | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`replied` gets the replies of clients to requests of the broker. No code may have two handlers.

        `watch` is called with every request whose code is `watched`; handlers get what it returns.
        """
        self._handlers: dict[int, Handler] = {}
        self._replied = replied
        self._watched, self._watch = watched, watch
        self._refusals = refusals or RefusalCounts()
        self._faults = FaultLog(log, clock or SystemClock())
        for table in tables:
            twice = self._handlers.keys() & table.keys()
            assert not twice, f"two handlers for request codes {sorted(twice)}"
            self._handlers.update({int(code): handler for code, handler in table.items()})

    def __call__(self, peer: Peer, request: Command) -> None:
        if request.is_response:
            self._replied(peer, request)
            return
        if request.code in self._watched and self._watch is not None:
            request = self._watch(peer, request)
        handler = self._handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            answer_code(peer, request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            return
        if len(request.body) > SMALL_BODY and (problem := body_problem(request)) is not None:
            self._refusals.add(RefusalReason.BODY)
            answer_code(peer, request, ResponseCode.INVALID_PARAMETER, problem)
            return
        try:
            handler(peer, request)
        except BodyError as error:
            self._refusals.add(RefusalReason.BODY)
            answer_error(peer, request, error)
        except LaneError as error:
            answer_error(peer, request, error)
        except Exception as error:  # noqa: BLE001 - a fault in one request must not stop the broker
            self._faults.write(f"request {request.code} from {peer} failed", error)
            answer_fault(peer, request)


def answer(peer: Peer, request: Command, ext: dict[str, str] = _NO_FIELDS, body: bytes = b"") -> None:
    """Answer with success; a oneway request gets no answer."""
    if isinstance(request, WatchedRequest):
        request.ended(DONE)
    if not request.is_oneway:
        _send(peer, request, ResponseCode.SUCCESS, ext, body, None)


def answer_code(
    peer: Peer,
    request: Command,
    code: int,
    remark: str,
    ext: dict[str, str] = _NO_FIELDS,
    body: bytes = b"",
) -> None:
    """Answer with a code and a remark; a oneway request gets no answer."""
    if isinstance(request, WatchedRequest):
        request.ended(DONE if code == ResponseCode.SUCCESS else f"refused: {remark.strip()}")
    if not request.is_oneway:
        _send(peer, request, code, ext, body, remark)


def _send(peer: Peer, request: Command, code: int, ext: dict[str, str], body: bytes, remark: str | None) -> None:
    if len(body) >= LARGE_FRAME_BYTES and request.serialize_type == JSON:
        peer.send(response_head(request.opaque, code, ext, len(body), remark))
        peer.send(body)  # a megabyte is not copied into the frame of its head
    else:
        peer.send(_encoded(request, code, ext, body, remark))


def _encoded(request: Command, code: int, ext: dict[str, str], body: bytes, remark: str | None) -> bytes:
    """The response with a header of the same form as the request's: some clients read only the one they write."""
    if request.serialize_type == JSON:
        return encode_response(request.opaque, code, ext, body, remark)
    return encode_command(
        Command(code, request.opaque, RESPONSE_BIT, ext, body, remark, serialize_type=request.serialize_type)
    )


def answer_error(peer: Peer, request: Command, error: LaneError) -> None:
    """Answer with the response code that tells RocketMQ clients most about this error."""
    remark = error.remark if isinstance(error, BrokerRefused) else str(error)
    answer_code(peer, request, code_for(error), remark)


def answer_saved(peer: Peer, request: Command, error: StorageError | None, body: bytes = b"") -> None:
    """Answer after a write: with success, or with the write's error."""
    if error is None:
        answer(peer, request, body=body)
        return
    if isinstance(request, WatchedRequest):
        request.ended(f"failed: {error}")
    answer_error(peer, request, error)


def answer_fault(peer: Peer, request: Command) -> None:
    """Answer after an unexpected error, which the caller has logged."""
    remark = "internal error; the broker's log has the details"
    if isinstance(request, WatchedRequest):
        request.ended(f"failed: {remark}")
    answer_code(peer, request, ResponseCode.SYSTEM_ERROR, remark)


def give_up(request: Command) -> None:
    """Note that a request is not carried out, because its client has left before the broker came to it."""
    if isinstance(request, WatchedRequest):
        request.ended("refused: the client closed its connection before its turn came")


def code_for(error: LaneError) -> int:
    """The response code of an error; SYSTEM_ERROR unless listed."""
    match error:
        case BrokerRefused():
            return error.code
        case InvalidName():
            return ResponseCode.INVALID_PARAMETER
        case CorruptRecord():
            return ResponseCode.SYSTEM_ERROR
        case DiskFull() | NoDescriptors() | StillRebuilding():
            return ResponseCode.SYSTEM_BUSY  # nothing was stored; the same request may succeed later
        case StorageError():
            return ResponseCode.SERVICE_NOT_AVAILABLE
        case _:
            return ResponseCode.SYSTEM_ERROR
