"""Checks of arguments at the border to the user's program.

A wrong type is refused by the call that gets it, with an error that names the argument, and not by something deeper
that happens to need it.
"""

from typing import Any

from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Seconds, to_seconds


def check_whole(name: str, value: object, least: int = 0) -> None:
    """Raises `InvalidOption` unless the value is a whole number, at least `least`."""
    if type(value) is not int or value < least:
        raise InvalidOption(f"{name}={value!r} must be a whole number, at least {least}")


def check_text(name: str, value: object) -> None:
    """Raises `InvalidOption` unless the value is text."""
    if not isinstance(value, str):
        raise InvalidOption(f"{name}={value!r} must be text")


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], words: str) -> None:
    """Raises `InvalidOption` unless the value is of one of the kinds; `words` says what to pass."""
    if not isinstance(value, kinds):
        raise InvalidOption(f"{name}={value!r} must be {words}")


def check_callable(name: str, value: object) -> None:
    """Raises `InvalidOption` unless the value can be called."""
    if not callable(value):
        raise InvalidOption(f"{name}={value!r} must be a function")


def seconds(name: str, value: Seconds | Any) -> float:
    """A duration in seconds; the error for anything else names the argument."""
    try:
        return to_seconds(value)
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None


def check_queue(value: object) -> None:
    """Raises `InvalidOption` unless the value is a queue."""
    check_kind("queue", value, MessageQueue, "a MessageQueue, such as one of `PullConsumer.queues(topic)`")
