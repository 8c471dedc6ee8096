"""A user's function, ready to be called with messages.

The signature decides what it is given: a parameter annotated `Message` gets the message, the other one the body
decoded as its annotation says. `(event)`, `(event, message)` and `(message: Message)` are all fine; a second
parameter without annotation gets the message. The signature is read once, when the handler is registered, so a
mistake shows up at start and not with the first message.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from lanemq.client.message import Message
from lanemq.model.errors import InvalidOption

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """How to call one handler."""

    name: str
    is_async: bool
    call: Callable[[Any], Any]
    """Takes a message, or a tuple of messages if the handler asked for batches."""


def handler_call(handler: Handler, *, batched: bool = False) -> HandlerCall:
    """Reads the handler's signature, or says what is wrong with it."""
    name = getattr(handler, "__qualname__", type(handler).__name__)
    event_type, event_at, message_at, count = _roles(handler, name)
    arguments = _arguments(event_type, event_at, message_at, count, batched=batched)
    function = handler

    def call(given: Any) -> Any:
        return function(*arguments(given))

    is_async = inspect.iscoroutinefunction(_function(handler))
    if message_at == 0 and count == 1:
        return HandlerCall(name, is_async, handler)
    return HandlerCall(name, is_async, call)


def _roles(handler: Handler, name: str) -> tuple[Any, int | None, int | None, int]:
    """Which parameter is the event and of what type, which is the message, and how many there are."""
    parameters = _positional(handler, name)
    hints = _hints(handler)
    types = [hints.get(each.name, Any) for each in parameters]
    message_at = next((at for at, wanted in enumerate(types) if _is_message(wanted)), None)
    if message_at is None and len(parameters) == 2:
        message_at = 1
    event_at = next((at for at in range(len(parameters)) if at != message_at), None)
    event_type = Any if event_at is None else types[event_at]
    return event_type, event_at, message_at, len(parameters)


def _positional(handler: Handler, name: str) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = inspect.signature(handler).parameters.values()
    required = [each for each in every if each.default is each.empty]
    wrong = [each for each in required if each.kind is inspect.Parameter.KEYWORD_ONLY]
    parameters = [each for each in required if each.kind in kinds]
    if wrong or not 1 <= len(parameters) <= 2:
        given = inspect.signature(handler)
        raise InvalidOption(f"handler {name} must take (event), (event, message) or (message: Message), not {given}")
    return parameters


def _hints(handler: Handler) -> dict[str, Any]:
    try:
        return get_type_hints(_function(handler))
    except (NameError, TypeError) as error:
        raise InvalidOption(
            f"the annotations of handler {handler!r} cannot be read: {error}; define the types at module level"
        ) from error


def _function(handler: Handler) -> Any:
    """The function itself, also of an object with `__call__`."""
    return handler if inspect.isroutine(handler) else type(handler).__call__


def _is_message(wanted: Any) -> bool:
    return wanted is Message or Message in get_args(wanted)


def _arguments(
    event_type: Any, event_at: int | None, message_at: int | None, count: int, *, batched: bool
) -> Callable[[Any], tuple[Any, ...]]:
    item_type = (get_args(event_type) or (Any,))[0]

    def event_of(given: Any) -> Any:
        return [message.value(item_type) for message in given] if batched else given.value(event_type)

    if count == 1:
        return (lambda given: (given,)) if event_at is None else (lambda given: (event_of(given),))
    if event_at == 0 and message_at == 1:
        return lambda given: (event_of(given), given)
    return lambda given: (given, event_of(given))
