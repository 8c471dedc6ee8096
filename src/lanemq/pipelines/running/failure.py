"""`PipelineFailed`: why a running pipeline ended, in one sentence."""

import re
from typing import Final

from lanemq.model.errors import LaneError

_RAISED: Final = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*): (?P<message>.+(?:\n(?!\s*(?:SQLSTATE|at |File |===)).+)*)", re.M
)
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
_WRAPPERS: Final = ("py4j.", "pyspark.", "org.", "java.", "scala.")
_MAX_LENGTH: Final = 500


class PipelineFailed(LaneError):
    """A pipeline ended with an error. `trace` has everything that Spark said about it.

    The error itself is `__cause__` if it was raised in this process.
    """

    def __init__(self, name: str, error: BaseException, during: str = "") -> None:
        self.name = name
        self.trace = str(error)
        where = f" in {during}" if during else ""
        super().__init__(f"pipeline {name!r} failed{where}: {sentence_of(error)}")


def sentence_of(error: BaseException) -> str:
    """The part of an error that says what happened.

    Spark wraps an error in several Java traces. The sentence is the error itself if it was raised in this process,
    else the last line of the innermost Python traceback, else the first line of Spark's text.
    """
    if isinstance(error, LaneError):
        return str(error)
    text = str(error)
    if "Traceback (most recent call last)" in text:
        found = _innermost(text)
        if found is not None:
            return found
    kind = type(error).__name__
    first = _STATE.sub("", text.strip().split("\n\n")[0].split("\nJVM stacktrace")[0]).strip().splitlines()
    return f"{kind}: {first[0][:_MAX_LENGTH]}" if first else kind


def _innermost(text: str) -> str | None:
    """The error at the end of the last Python traceback in Spark's text."""
    tail = text[text.rindex("Traceback (most recent call last)") :]
    for found in _RAISED.finditer(tail):
        kind, message = found["kind"], _STATE.sub("", found["message"]).strip()
        if kind.startswith(_WRAPPERS):
            continue
        plain = " ".join(message.split())[:_MAX_LENGTH]
        return plain if kind.startswith("lanemq.") else f"{kind.rpartition('.')[2]}: {plain}"
    return None
