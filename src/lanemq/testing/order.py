"""`assert_in_order`: whether messages were handled in the order in which their keys sent them."""

from collections.abc import Hashable, Iterable
from typing import Any

from lanemq.client.message import Message
from lanemq.model.checks import check_each
from lanemq.model.errors import InvalidOption
from lanemq.model.wording import shown


def assert_in_order(handled: Iterable[Message | tuple[Hashable, Any]], *, repeats: bool = False) -> None:
    """Raises `AssertionError` if a message was handled before an earlier one of its key, or twice.

    `handled` are messages as handlers got them, or pairs of a key and anything that grows, such as your own numbers.
    With `repeats=True` a message may come again, as after a crash: then everything after it comes again too.
    """
    seen: dict[Hashable, list[Any]] = {}
    wanted = "messages, or pairs of a key and a number"
    for each in check_each("handled", handled, (Message, tuple), wanted):
        if not isinstance(each, Message) and len(each) != 2:
            raise InvalidOption(f"handled: {shown(each)} is wrong: it must be {wanted}")
        lane, place = ((each.queue, each.key), each.queue_offset) if isinstance(each, Message) else each
        places = seen.setdefault(lane, [])
        wrong = _problem(places, place, repeats)
        if wrong:
            name = each.key if isinstance(each, Message) else lane
            raise AssertionError(f"key {name!r}: {place} {wrong}; handled so far: {_shown(places)}, then {place}")
        places.append(place)


def _problem(places: list[Any], place: Any, repeats: bool) -> str | None:
    """Why a place may not follow the others; None if it may."""
    if not places or place > max(places):
        # After a repeat, what was handled before it must come again first.
        left = [each for each in places if each > places[-1]] if places else []
        return f"came while {min(left)} was still to be repeated" if left else None
    if place in places:
        following = sorted(each for each in {*places} if each > places[-1])
        if not repeats:
            return "was handled twice"
        return f"was repeated before {following[0]}" if following and place > following[0] else None
    return f"was handled after {max(places)}"


def _shown(places: list[Any]) -> str:
    return ", ".join(map(str, places[-10:])) or "nothing"
