"""JSON as fastjson writes it.

Java brokers emit bodies that no JSON parser accepts: integer keys without quotes (`{0:"a"}`), objects as keys
(`{{"queueId":0}:7}`) and references to earlier values (`{"$ref":"$.a"}`). This parser reads all of that. Nothing that a
peer sends can exhaust the stack or make a value contain itself. Keys become text: an integer key its digits, an object
key its compact JSON.

Integer keys, by far the most frequent, are put into quotes by two passes of regular expressions, and the rest is a
strict parser's work. Only object keys need a parser in Python. A server sets smaller limits than a client (`Limits`):
it must read what any peer sends, a client what its broker answers.
"""

import re
from typing import NamedTuple

import msgspec

from lanemq.model.errors import RemoteProtocolError

MAX_DEPTH = 64


class Limits(NamedTuple):
    """Bytes of a body that is not exactly the strict JSON that its kind needs."""

    loose: int
    """Of a body with integer keys, references or nulls."""
    slow: int
    """Of one that only the parser in Python can read: it takes a microsecond for each byte."""


OF_CLIENT = Limits(16 * 1024 * 1024, 4 * 1024 * 1024)
OF_SERVER = Limits(32 * 1024, 2 * 1024)
"""No client sends object keys; what takes longer than a few milliseconds would hold the event loop."""
MAX_REFERRED = 100_000
"""Limit of values that references may add: without it, a few bytes could multiply a body endlessly."""

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRING_PIECE = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)
_INTEGER_KEY = re.compile(r"([{,][ \t\r\n]*)(-?[0-9]{1,40})([ \t\r\n]*:)")
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,3})?")
_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]{1,9})\]")
_WORDS = {"true": True, "false": False, "null": None}
_MISSING = object()


class BodyError(RemoteProtocolError):
    """A body is not what its request needs; the connection itself can continue."""


def loads_loose(data: bytes, limits: Limits = OF_CLIENT) -> object:
    """Parses strict JSON or what fastjson writes; raises `BodyError`."""
    if len(data) > limits.loose:
        raise BodyError(
            f"a body of {len(data)} bytes is not the JSON that was expected; only up to {limits.loose} bytes may have "
            f"nulls, references or keys without quotes"
        )
    try:
        value: object = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        value = _loads_keys(data, limits)
    if b'"$ref"' in data:
        return _References(value).resolved()
    return value


def _loads_keys(data: bytes, limits: Limits) -> object:
    """Parses JSON with keys that are not text."""
    text = _as_text(data)
    try:
        value: object = msgspec.json.decode(_with_quoted_keys(text))
    except (ValueError, RecursionError):
        if len(data) > limits.slow:
            raise BodyError(
                f"body of {len(data)} bytes is not JSON; at most {limits.slow} may have objects as keys"
            ) from None
        value = _Reader(text).read_all()
    return value


def _with_quoted_keys(text: str) -> str:
    """The text with integer keys in quotes. Strings are set aside first, so that nothing inside them is changed."""
    pieces = _STRING_PIECE.split(text)
    outside = "\x00".join(pieces[::2])
    if outside.count("\x00") != len(pieces) // 2:
        return text  # a control character that JSON does not allow
    quoted = _INTEGER_KEY.sub(r'\1"\2"\3', outside).split("\x00")
    pieces[::2] = quoted
    return "".join(pieces)


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"body of {len(data)} bytes is not valid UTF-8: {error}") from None


class _Reader:
    """A recursive descent over the text; `_at` is the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read_all(self) -> object:
        value = self._value(0)
        if self._peek():
            raise self._error("more text behind the value")
        return value

    def _value(self, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}")
        match self._peek():
            case "{":
                return self._object(depth + 1)
            case "[":
                return self._array(depth + 1)
            case '"':
                return self._string()
            case _:
                return self._scalar()

    def _object(self, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        self._at += 1
        while not self._closes("}", bool(members)):
            key = self._key(depth)
            if self._peek() != ":":
                raise self._error("a colon is missing")
            self._at += 1
            members[key] = self._value(depth)
        return members

    def _array(self, depth: int) -> list[object]:
        items: list[object] = []
        self._at += 1
        while not self._closes("]", bool(items)):
            items.append(self._value(depth))
        return items

    def _closes(self, closer: str, has_items: bool) -> bool:
        """Steps over the closing bracket, or over the comma before the next item."""
        char = self._peek()
        if char == closer:
            self._at += 1
            return True
        if has_items:
            if char != ",":
                raise self._error(f"a comma or {closer} is missing")
            self._at += 1
        return False

    def _key(self, depth: int) -> str:
        key = self._value(depth)
        if isinstance(key, str):
            return key
        return msgspec.json.encode(key).decode()

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise self._error("a string does not end")
        try:
            text = msgspec.json.decode(match[0].encode(), type=str)
        except ValueError as error:
            raise self._error(str(error)) from None
        self._at = match.end()
        return text

    def _scalar(self) -> object:
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            raise self._error("no value")
        self._at = match.end()
        return float(match[0]) if set(match[0]) & set(".eE") else int(match[0])

    def _peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _error(self, problem: str) -> BodyError:
        return BodyError(f"JSON body cannot be read at character {self._at} of {len(self._text)}: {problem}")


class _References:
    """Replaces `{"$ref": path}` by the value at the path.

    Only values that end before the reference are inserted. fastjson only refers backwards, so no value can come to
    contain itself. A reference to a missing path stays as it is.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._sizes: dict[int, int] = {}
        """The number of values inside a finished one, including those inserted for references."""
        self._referred = 0

    def resolved(self) -> object:
        self._walk(self._root, 0)
        return self._root

    def _walk(self, value: object, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise BodyError(f"JSON body with references is nested deeper than {MAX_DEPTH}")
        size = 1
        if isinstance(value, dict):
            for key, item in value.items():
                value[key] = target = self._target(item)
                size += self._sizes.get(id(target), 0) if target is not item else self._walk(item, depth + 1)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                value[index] = target = self._target(item)
                size += self._sizes.get(id(target), 0) if target is not item else self._walk(item, depth + 1)
        self._sizes[id(value)] = size
        return size

    def _target(self, item: object) -> object:
        """The value that a reference points to; any other value itself."""
        if not (isinstance(item, dict) and len(item) == 1 and isinstance(path := item.get("$ref"), str)):
            return item
        target = self._find(path)
        if target is _MISSING or id(target) not in self._sizes:
            return item
        self._referred += self._sizes[id(target)]
        if self._referred > MAX_REFERRED:
            raise BodyError(f"references in a JSON body stand for more than {MAX_REFERRED} values")
        return target

    def _find(self, path: str) -> object:
        if not path.startswith("$"):
            return _MISSING
        value, at = self._root, 1
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                return _MISSING
            value = _follow(value, step)
            at = step.end()
        return value


def _follow(value: object, step: re.Match[str]) -> object:
    if step[1] is not None:
        return value.get(step[1], _MISSING) if isinstance(value, dict) else _MISSING
    index = int(step[2])
    return value[index] if isinstance(value, list) and index < len(value) else _MISSING
