"""SendMessage: each message goes to the queue of its message group, as everywhere in LaneMQ.

A client that gets no answer in time sends the message again with the same id. The ids of the last minutes are kept with
their receipts, so such a repeat is stored once. Two clients with the same id have sent two messages. The ids are in
memory: a repeat through another front, or after a restart, is stored twice.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.batches import SendArguments
from lanemq.client.receipt import Receipt
from lanemq.clock import Clock
from lanemq.grpc_front.answers import OK, CallFailed, name_of, status_of
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis
from lanemq.wire.grpc.messages import (
    Code,
    Encoding,
    MessageType,
    SendMessageResponse,
    SendResultEntry,
    Status,
    SystemProperties,
    WireMessage,
)

REMEMBERED_MS, REMEMBERED = 120_000, 100_000
"""How long, and how many ids of stored messages are kept. Clients repeat within seconds."""
MAX_GROUP_CHARS = 127

_Sent = asyncio.Task[Receipt]
_Place = tuple[str, str, str]
"""Client, topic, and id of a message."""


class MessageSender:
    """The producer of a front, and the messages it has sent lately."""

    def __init__(self, producer: AsyncProducer, clock: Clock) -> None:
        self._producer = producer
        self._clock = clock
        self._sent: OrderedDict[_Place, tuple[Millis, _Sent]] = OrderedDict()
        self.stored = self.repeats = self.failed = 0

    async def send(self, client: str, messages: Sequence[WireMessage]) -> SendMessageResponse:
        """Stores the messages of a client's call, those of a message group in their order."""
        entries: list[SendResultEntry] = []
        sending = [self._begin(client, message) for message in messages]
        for message, begun in zip(messages, sending, strict=True):
            entries.append(await self._entry(message, begun))
        if not entries:
            raise CallFailed(Code.BAD_REQUEST, "the request has no message")
        statuses = [entry.status for entry in entries if entry.status is not None]
        first = statuses[0]
        same = all(status.code == first.code for status in statuses)
        return SendMessageResponse(first if same else Status(Code.MULTIPLE_RESULTS, "see the entries"), entries)

    def _begin(self, client: str, message: WireMessage) -> "_Sent | CallFailed":
        """Hands a message to the producer at once, so that calls keep the order of their arrival."""
        try:
            topic, system = name_of(message.topic, "topic"), _checked(message)
        except CallFailed as failed:
            return failed
        self._forget_old()
        place = client, topic, system.message_id
        known = self._sent.get(place)
        if known is not None:
            self.repeats += 1
            return known[1]
        arguments: SendArguments = {
            "message_id": system.message_id,
            "tag": system.tag or None,
            "keys": tuple(system.keys),
            "properties": message.user_properties,
        }
        sending = self._producer.send(topic, message.body, key=system.message_group, **arguments)
        task = asyncio.get_running_loop().create_task(sending)
        task.add_done_callback(lambda task: self._ended(place, task))
        self._sent[place] = self._clock.now(), task
        return task

    async def _entry(self, message: WireMessage, begun: "_Sent | CallFailed") -> SendResultEntry:
        message_id = message.system.message_id if message.system is not None else ""
        if isinstance(begun, CallFailed):
            self.failed += 1
            return SendResultEntry(begun.status, message_id)
        try:
            receipt = await asyncio.shield(begun)
        except LaneError as error:
            self.failed += 1
            return SendResultEntry(status_of(error), message_id)
        self.stored += 1
        return SendResultEntry(OK, message_id, offset=receipt.offset)

    def _ended(self, place: _Place, task: _Sent) -> None:
        """Forgets a message that was not stored: it may be sent again, and its error refers to its body."""
        if _has_failed(task):
            self._sent.pop(place, None)

    def _forget_old(self) -> None:
        before = self._clock.now() - REMEMBERED_MS
        while self._sent:
            place, (at, task) = next(iter(self._sent.items()))
            if (at > before and len(self._sent) <= REMEMBERED) or not task.done():
                break
            del self._sent[place]


def _has_failed(task: _Sent) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _checked(message: WireMessage) -> SystemProperties:
    """What a message says of itself; raises `CallFailed` for what LaneMQ cannot store as it is meant."""
    system = message.system
    if system is None or not system.message_id:
        raise CallFailed(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    if system.body_encoding == Encoding.GZIP:
        raise CallFailed(Code.UNSUPPORTED, "compressed bodies are not supported")
    if system.message_type in (MessageType.DELAY, MessageType.TRANSACTION, MessageType.LITE, MessageType.PRIORITY):
        kind = MessageType(system.message_type).name.lower()
        raise CallFailed(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"{kind} messages are not supported")
    if system.message_group is not None and not 0 < len(system.message_group) <= MAX_GROUP_CHARS:
        text = f"the message group must have 1 to {MAX_GROUP_CHARS} characters"
        raise CallFailed(Code.ILLEGAL_MESSAGE_GROUP, text)
    return system
