"""Where an exception was raised, in a few words without values: for operators, who see no traceback."""

import traceback
from types import TracebackType
from typing import Final

MAX_FRAMES: Final = 3
MAX_NAME: Final = 40
"""Characters of a file's or a function's name."""
OWN: Final = __file__.rpartition("/model/")[0]
DEMO: Final = f"{OWN}/testing/demo/"
"""Handlers of the demonstration, which are shown as a user's are."""


def where_raised(error: BaseException) -> str:
    """`prices.py:8 in price_of, called from bill.py:21 in bill`; empty if no frame is the user's.

    The innermost frames, up to three. Folders are left out: two of them name a file well enough.
    """
    frames = [each for each in _frames(error.__traceback__) if not _is_own(each.filename)]
    return ", called from ".join(map(_shown, reversed(frames[-MAX_FRAMES:])))


def trace_in_user_code(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of the user on: how LaneMQ came to call a handler helps nobody who reads it.

    Whole, if no frame is the user's.
    """
    trace = error.__traceback__
    while trace is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace or error.__traceback__


def _frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    return list(traceback.StackSummary.extract(traceback.walk_tb(trace), lookup_lines=False))


def _is_own(file: str) -> bool:
    """Whether it is a file of LaneMQ; compiled modules name their sources below the folder of the build."""
    return (file.startswith(OWN) and not file.startswith(DEMO)) or file.endswith(".pyx") or file.startswith("<frozen ")


def _shown(frame: traceback.FrameSummary) -> str:
    file = "/".join(frame.filename.split("/")[-2:])
    return f"{file[-MAX_NAME:]}:{frame.lineno} in {frame.name[:MAX_NAME]}"
