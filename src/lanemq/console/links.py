"""The addresses of pages. Names come from users and messages, so every part is quoted."""

from urllib.parse import quote, unquote, urlencode

from lanemq.model.queue import MessageQueue


def topic_link(topic: str) -> str:
    return f"/topics/{quote(topic, safe='')}"


def group_link(group: str) -> str:
    return f"/groups/{quote(group, safe='')}"


def key_link(topic: str, key: str | None) -> str:
    """The page of a key. Without a key, of the topic."""
    return topic_link(topic) if key is None else f"/key?{urlencode({'topic': topic, 'key': key})}"


def message_link(queue: MessageQueue, offset: int) -> str:
    place = {"topic": queue.topic, "broker": queue.broker, "queue": queue.queue_id, "offset": offset}
    return f"/message?{urlencode(place)}"


def lane_query(group: str, topic: str, broker: str, queue: int, key: str | None) -> str:
    """The part of an address that names a lane; a lane without a key has no `key`."""
    named = {"group": group, "topic": topic, "broker": broker, "queue": str(queue)}
    return urlencode(named if key is None else {**named, "key": key})


def dead_link(group: str) -> str:
    """The dead letters of a group."""
    return f"/dead?{urlencode({'group': group})}"


def dead_letter_link(group: str, id: str) -> str:
    return f"/dead/letter?{urlencode({'group': group, 'id': id})}"


def dead_change_link(what: str, group: str, *, id: str = "", key: str = "") -> str:
    """The page before a `redrive` or `discard`; without id and key, of all dead letters of the group."""
    named = {"group": group, "id": id, "key": key}
    return f"/dead/{what}?{urlencode({name: value for name, value in named.items() if value})}"


def pipeline_link(number: int, page: str = "", **named: str) -> str:
    """A page of the pipeline with this number in the console's settings. Browsers never name a folder."""
    query = urlencode({name: value for name, value in named.items() if value})
    return f"/pipelines/{number}{f'/{page}' if page else ''}{f'?{query}' if query else ''}"


def in_form(key: str) -> str:
    """A key as the value of a hidden field. Browsers would turn its line breaks into others."""
    return quote(key, safe="")


def of_form(value: str) -> str:
    """The key whose `in_form` this is."""
    return unquote(value)
