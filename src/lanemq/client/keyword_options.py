"""What a program passes as keyword arguments, made into options of a producer or a consumer.

A name that is no option, or a value of another kind, is refused before anything is started: ignored, it would be
found out only when the promise it was meant to give is missed. A history may be named by its folder; its file is
opened last, so that options that do not hold leave none behind.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack

from lanemq.client.consumer_options import ConsumerOptions
from lanemq.client.identity import new_client_id
from lanemq.client.producer_options import ProducerOptions, ProducerSettings
from lanemq.clock import Clock, nanoseconds_of
from lanemq.history import NO_HISTORY, History, Role, open_history
from lanemq.model.errors import InvalidOption

_CONSUMER = tuple(each.name for each in fields(ConsumerOptions))
_PRODUCER = tuple(each.name for each in fields(ProducerOptions))


def producer_options(clock: Clock, client_id: str, /, **settings: Unpack[ProducerSettings]) -> ProducerOptions:
    """Checked options; a history named by its folder is opened under the producer's client id."""
    _refuse_unknown(settings, _PRODUCER, "producer")
    given = settings.pop("history", NO_HISTORY)
    options = ProducerOptions(**settings)  # type: ignore[arg-type]  # without history: that may be a path
    return replace(options, history=_opened(given, client_id, clock, "producer"))


def consumer_options(servers: str, group: str, given: Mapping[str, Any]) -> ConsumerOptions:
    """Checked options; a history named by its folder is opened under the member's client id."""
    _refuse_unknown(given, _CONSUMER, "consumer")
    rest = dict(given)
    history = rest.pop("history", NO_HISTORY)
    if isinstance(rest.get("offsets_folder"), str):
        rest["offsets_folder"] = Path(rest["offsets_folder"])
    options = ConsumerOptions(servers=servers, group=group, **rest)
    client_id = options.client_id or new_client_id()
    opened = _opened(history, client_id, options.clock, "consumer")
    return replace(options, client_id=client_id, history=opened) if opened.on else options


def _refuse_unknown(given: Iterable[str], known: Iterable[str], whose: str) -> None:
    wrong = [name for name in given if name not in set(known)]
    if not wrong:
        return
    near = difflib.get_close_matches(wrong[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
    raise InvalidOption(f"{', '.join(wrong)}: no such option of a {whose}; {hint}")


def _opened(given: object, client_id: str, clock: Clock, role: Role) -> History:
    if isinstance(given, History):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidOption(f"history={given!r} is no folder: give the path of one, or leave it out")
    try:
        return open_history(Path(given), client_id, nanoseconds_of(clock), role)
    except OSError as error:
        raise InvalidOption(f"history={str(given)!r} cannot be written to: {error}; give another folder") from None
