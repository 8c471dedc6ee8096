"""Checks of arguments at the border to the user's program.

A wrong type is refused by the call that gets it, with an error that names the argument, and not by something deeper
that happens to need it.
"""

from collections.abc import Iterable
from typing import Any

from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import MAX_SECONDS, Seconds, to_seconds
from lanemq.model.wording import shown

MAX_WHOLE = 2**63 - 1
"""The largest number that messages and requests can hold."""


def check_whole(name: str, value: object, least: int = 0) -> None:
    """Raises `InvalidOption` unless the value is a whole number, at least `least`."""
    if type(value) is not int or not least <= value <= MAX_WHOLE:
        raise InvalidOption(f"{name}={shown(value)} must be a whole number, at least {least}")


def check_text(name: str, value: object) -> None:
    """Raises `InvalidOption` unless the value is text."""
    if not isinstance(value, str):
        raise InvalidOption(f"{name}={shown(value)} must be text")


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], words: str) -> None:
    """Raises `InvalidOption` unless the value is of one of the kinds; `words` says what to pass."""
    if not isinstance(value, kinds):
        raise InvalidOption(f"{name}={shown(value)} must be {words}")


def check_each(name: str, values: object, kinds: type | tuple[type, ...], words: str) -> list[Any]:
    """The values of an iterable; raises `InvalidOption` unless it is one, and its values are of one of the kinds."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidOption(f"{name}={shown(values)} must be {words}")
    items = list(values)
    for each in items:
        if not isinstance(each, kinds) or isinstance(each, bool):
            raise InvalidOption(f"{name}: {shown(each)} is wrong: it must be {words}")
    return items


def check_flag(name: str, value: object) -> None:
    """Raises `InvalidOption` unless the value is True or False: the text "no" would count as true."""
    check_kind(name, value, bool, "True or False")


def check_callable(name: str, value: object) -> None:
    """Raises `InvalidOption` unless the value can be called."""
    if not callable(value):
        raise InvalidOption(f"{name}={shown(value)} must be a function")


def seconds(name: str, value: Seconds | Any) -> float:
    """A duration in seconds; the error for anything else names the argument."""
    try:
        number = to_seconds(value)
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None
    if isinstance(value, bool) or not 0 <= number <= MAX_SECONDS:
        raise InvalidOption(f"{name}={shown(value)} must be a number of seconds from 0 to {MAX_SECONDS:.0f}")
    return number


def check_queue(value: object) -> None:
    """Raises `InvalidOption` unless the value is a queue."""
    check_kind("queue", value, MessageQueue, "a MessageQueue, such as one of `PullConsumer.queues(topic)`")
