"""What the broker sends to its clients without a request: notices, and questions that they answer."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from lanemq.core.brokering.members.group import ConnectionId
from lanemq.core.brokering.members.membership import Membership
from lanemq.model.units import Millis
from lanemq.net.serving.loop_slices import LoopSlices
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import ONEWAY_BIT, Command, encode_command
from lanemq.wire.headers import ConsumerListHeader

MAX_QUESTIONS = 1_000
"""Questions without an answer yet; for a further one, the oldest counts as unanswered."""
ANSWER_MS = 10_000
"""How long a client may take to answer a question (RocketMQ: Broker2Client)."""

MAX_ASKED = 1_000
"""Requests of one connection to which a reply may come; a further one takes the place of the oldest. Many: a client
takes more memory. Few: replies to a client that has asked more at once do not arrive."""

OnAnswer = Callable[[Command | None], None]
"""Called once with a client's answer; None if it did not answer in time, or its connection was closed."""


class _Question(NamedTuple):
    deadline: Millis
    on_answer: OnAnswer


class Notices:
    """The open connections, and what is sent on them.

    Members that are notified of a change of their group (NOTIFY_CONSUMER_IDS_CHANGED) rebalance at once instead of
    within 20 s. Notices of many groups or members are sent in slices.
    """

    def __init__(self, members: Membership, slices: LoopSlices) -> None:
        self._members = members
        self._slices = slices
        self._changed: dict[str, None] = {}
        """Groups whose members are to be notified, in order."""
        self._notifying = False
        self._peers: dict[ConnectionId, Peer] = {}
        self._opaque = 0
        self._questions: dict[tuple[int, int], _Question] = {}
        """By connection and opaque, the oldest first."""
        self._asked: dict[ConnectionId, dict[int, None]] = {}
        """By connection, the requests that it sent and that have no reply yet, as hashes (`_asked_for`)."""

    def __len__(self) -> int:
        """The number of open connections."""
        return len(self._peers)

    def connected(self, peer: Peer) -> None:
        self._peers[ConnectionId(peer.number)] = peer

    def closed(self, peer: Peer) -> None:
        self._peers.pop(ConnectionId(peer.number), None)
        self._asked.pop(ConnectionId(peer.number), None)
        for key in [key for key in self._questions if key[0] == peer.number]:
            self._questions.pop(key).on_answer(None)

    def peer(self, connection: ConnectionId) -> Peer | None:
        return self._peers.get(connection)

    def peer_of(self, group: str, client_id: str) -> Peer | None:
        """A connection of one member, for requests that are relayed to it."""
        for connection in self._members.connections(group):
            if self._members.client_of(connection) == client_id:
                return self._peers.get(connection)
        return None

    def peer_of_client(self, client_id: str) -> Peer | None:
        """A connection of a client, for messages to it."""
        peers = (self._peers.get(connection) for connection in self._members.connections_of(client_id))
        return next((peer for peer in peers if peer is not None), None)

    def asks_for_reply(self, peer: Peer, client_id: str, correlation: str) -> None:
        """Note that a client has sent a message to which it waits for a reply."""
        mine = self._asked.setdefault(ConnectionId(peer.number), {})
        mine[_asked_for(client_id, correlation)] = None
        if len(mine) > MAX_ASKED:
            del mine[next(iter(mine))]

    def peer_that_asked(self, client_id: str, correlation: str) -> Peer | None:
        """A connection of a client that has sent the request of this reply."""
        wanted = _asked_for(client_id, correlation)
        for connection in self._members.connections_of(client_id):
            if wanted in self._asked.get(connection, ()):
                return self._peers.get(connection)
        return None

    def has_reply(self, peer: Peer, client_id: str, correlation: str) -> None:
        """Forget a request: no second reply to it is passed on."""
        self._asked.get(ConnectionId(peer.number), {}).pop(_asked_for(client_id, correlation), None)

    def ask(self, peer: Peer, code: int, ext: dict[str, str], body: bytes, on_answer: OnAnswer, *, now: Millis) -> None:
        """Send a request to a client; `on_answer` is called once."""
        while len(self._questions) >= MAX_QUESTIONS:
            self._questions.pop(next(iter(self._questions))).on_answer(None)
        opaque = self.next_opaque()
        self._questions[peer.number, opaque] = _Question(Millis(now + ANSWER_MS), on_answer)
        peer.send(encode_command(Command(code, opaque, 0, ext, body)))

    def answered(self, peer: Peer, reply: Command) -> None:
        """Pass on a client's answer; responses that answer no question are ignored."""
        question = self._questions.pop((peer.number, reply.opaque), None)
        if question is not None:
            question.on_answer(reply)

    def expire(self, now: Millis) -> None:
        """Give up questions that were not answered in time."""
        while self._questions and next(iter(self._questions.values())).deadline <= now:
            self._questions.pop(next(iter(self._questions))).on_answer(None)

    def group_changed(self, groups: Iterable[str]) -> None:
        """Notify every member of these groups, once and without an answer.

        A group that changes again before its members are notified is notified once.
        """
        self._changed.update(dict.fromkeys(groups))
        if self._changed and not self._notifying:
            self._notifying = True
            self._slices.begin(self._notify())

    def _notify(self) -> Iterator[None]:
        try:
            while self._changed:
                group = next(iter(self._changed))
                del self._changed[group]
                ext = ConsumerListHeader(consumer_group=group).to_ext()
                code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                notice = encode_command(Command(code, self.next_opaque(), ONEWAY_BIT, ext))
                for connection in self._members.connections(group):
                    if (peer := self._peers.get(connection)) is not None:
                        peer.send(notice)
                    yield
        finally:
            self._notifying = False

    def next_opaque(self) -> int:
        """A request number; never 0, which Node clients treat as missing."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF or 1
        return self._opaque


def _asked_for(client_id: str, correlation: str) -> int:
    """A request in little memory, however long its ids are. Python's hash has a key that no client knows."""
    return hash((client_id, correlation))
