"""Checks shared by the keyword arguments of producers and consumers.

A name that is no option, or a value of another type, is refused before anything starts. A history may be named by its
folder; its file is opened last, so that refused options leave no file behind.
"""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

from lanemq.clock import Clock, nanoseconds_of
from lanemq.history import History, Role, open_history
from lanemq.model.errors import InvalidOption


def refuse_unknown(given: Iterable[str], known: Iterable[str], whose: str) -> None:
    wrong = [name for name in given if name not in set(known)]
    if not wrong:
        return
    near = difflib.get_close_matches(wrong[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
    raise InvalidOption(f"{', '.join(wrong)}: no such option of a {whose}; {hint}")


def opened_history(given: object, client_id: str, clock: Clock, role: Role) -> History:
    if isinstance(given, History):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidOption(f"history={given!r} is no folder: give the path of one, or leave it out")
    try:
        return open_history(Path(given), client_id, nanoseconds_of(clock), role)
    except OSError as error:
        raise InvalidOption(f"history={str(given)!r} cannot be written to: {error}; give another folder") from None
