"""Finding messages by key, by id, and by their place in the log."""

from collections.abc import Collection, Mapping

from lanemq.client.admin.calls import AdminClient, found_messages
from lanemq.client.message import Message
from lanemq.model.checks import (
    check_each,
    check_text,
    check_whole,
)
from lanemq.model.errors import OffsetNotFound
from lanemq.model.keys import Key, key_text
from lanemq.model.names import (
    check_topic,
)
from lanemq.model.units import Millis
from lanemq.net.address import Address
from lanemq.wire.admin_headers import (
    QueryMessageHeader,
    ViewMessageHeader,
)
from lanemq.wire.codes import RequestCode
from lanemq.wire.properties import PropertyName
from lanemq.wire.record import decode_offset_id

FOREVER = Millis(2**62)


class MessageAdmin(AdminClient):
    """The part of `Admin` that finds messages."""

    def find_key(self, topic: str, key: Key, *, limit: int = 64, since: int = 0, until: int = FOREVER) -> list[Message]:
        """The newest messages with this key, or with it among their `keys`, oldest first; a broker returns at most 64.

        `since`, `until`: only those stored between these times, in ms since 1970, both included. Apache brokers search
        only `keys`.
        """
        for name, number, least in (("limit", limit, 1), ("since", since, 0), ("until", until, 0)):
            check_whole(name, number, least)
        return self._query(check_topic(topic), key_text(key), limit, since, until, by_unique_id=False)

    def find_id(self, topic: str, message_id: str) -> list[Message]:
        """Messages with this unique id, as in a receipt. More than one means that the message was stored twice."""
        check_text("message_id", message_id)
        return self._query(check_topic(topic), message_id, 32, 0, FOREVER, by_unique_id=True)

    def find_copies(self, topic: str, messages: Collection[Message]) -> list[Message]:
        """Copies of messages of other topics, such as retries and dead letters; of a key the newest 64.

        The index is asked for their keys or, where it has none, for the id of each message.
        """
        messages = check_each("messages", messages, Message, "a list of messages")
        by_key = self._calls.routes.get(check_topic(topic)).indexes_keys
        keys = {message.key for message in messages if message.key is not None} if by_key else set()
        copies = [each for key in sorted(keys) for each in self.find_key(topic, key)]
        for one in messages:
            if one.key not in keys:
                copies += self.find_id(topic, one.message_id)
        return copies

    def view(self, offset_id: str) -> Message:
        """The message with an offset message id, read from the broker that the id names."""
        check_text("offset_id", offset_id)
        where = decode_offset_id(offset_id)
        header = ViewMessageHeader(offset=where.position)
        address = Address(where.ip, where.port)
        reply = self._calls.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        names = {master: name for name, (master, _) in self._calls.masters().items()}
        return found_messages(reply.body, names.get(address, ""))[0]

    def _query(self, topic: str, key: str, limit: int, since: int, until: int, *, by_unique_id: bool) -> list[Message]:
        header = QueryMessageHeader(
            topic=topic, key=key, max_num=limit, begin_timestamp=since, end_timestamp=until, by_unique_id=by_unique_id
        )
        messages: list[Message] = []
        for name, address in self._calls.masters_of(topic):
            try:
                reply = self._calls.ask(address, RequestCode.QUERY_MESSAGE, header)
            except OffsetNotFound:
                continue
            messages += found_messages(reply.body, name)
        # The index is by hash, so the answer may contain other keys.
        matches = _has_id if by_unique_id else _has_key
        matching = [each for each in messages if matches(each.properties, key)]
        return sorted(matching, key=lambda each: (each.record.store_timestamp, each.record.position))[-limit:]


def _has_id(properties: Mapping[str, str], wanted: str) -> bool:
    return properties.get(PropertyName.UNIQUE_ID) == wanted


def _has_key(properties: Mapping[str, str], wanted: str) -> bool:
    return properties.get(PropertyName.KEY) == wanted or wanted in properties.get(PropertyName.KEYS, "").split()
