"""What a coordinator answers that does not lead: who does."""

from collections import deque
from collections.abc import Callable

from lanemq.broker.dispatch import answer_code
from lanemq.client.coordination import Leader
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Frame, decode_command
from lanemq.wire.headers import NotLeaderHeader


class Redirect:
    """The `Dispatcher` of a coordinator that waits."""

    def __init__(self, leader: Callable[[], Leader | None]) -> None:
        self._leader = leader

    def connected(self, peer: Peer) -> None:
        """Nobody has joined anything here."""

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        request, leader = decode_command(frames.popleft()), self._leader()
        if request.is_response:
            return
        if leader is None:
            answer_code(peer, request, ResponseCode.NOT_LEADER, "no coordinator leads at the moment")
            return
        header = NotLeaderHeader(lane_leader=str(leader.address), lane_term=leader.term)
        remark = f"the coordinator at {leader.address} leads"
        answer_code(peer, request, ResponseCode.NOT_LEADER, remark, header.to_ext())

    def closed(self, peer: Peer) -> None:
        """Nothing is known of it."""
