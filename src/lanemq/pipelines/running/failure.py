"""`PipelineFailed`: why a pipeline did not start or ended, in one sentence, with advice about the usual causes."""

import re
import traceback
from typing import Final

from lanemq.model.errors import LaneError

_RAISED: Final = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*): (?P<message>.+(?:\n(?!\s*(?:SQLSTATE|at |File |===)).+)*)", re.M
)
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
_WRAPPERS: Final = ("py4j.", "pyspark.", "org.", "java.", "scala.")
_JAVA: Final = re.compile(r"^(?:Caused by: |: )(?P<kind>[\w.$]+)(?:: (?P<message>.+))?$", re.M)
_MODULE: Final = re.compile(r"No module named '(?P<name>\w+)")
_MAX_LENGTH: Final = 500

_ADVICE: Final = (
    (
        re.compile(r"NoSuchBucket|specified bucket does not exist|bucket .* does not exist", re.I),
        "the store has no such bucket: create it, or correct the address",
    ),
    (
        re.compile(r"S3AFileSystem not found|No FileSystem for scheme"),
        "Spark has no file system for this address: add its package to spark.jars.packages, for s3a:// hadoop-aws in "
        "the version of Spark's Hadoop client",
    ),
    (
        re.compile(r"NoSuchMethodError|NoClassDefFoundError|InvalidClassException|incompatible protocol"),
        "jars or machines have different versions: the cluster must run the driver's version of Spark, and jars must "
        "be those for it",
    ),
    (
        re.compile(r"Python worker failed to connect back"),
        "the machine was too busy to start a Python process within 10 s: start the pipeline again when it has less to "
        "do, or give it more cores",
    ),
)
_MISSING_ON_EXECUTORS: Final = (
    "executors lack Python packages that the pipeline needs: install them there, or let them travel with the job "
    "(`lanemq spark pack`)"
)


class PipelineFailed(LaneError):
    """A pipeline ended with an error. `trace` has everything that Spark said about it.

    The error itself is `__cause__` if it was raised in this process.
    """

    def __init__(self, name: str, error: BaseException, during: str = "") -> None:
        self.name = name
        self.trace = str(error) if "\n" in str(error) else "".join(traceback.format_exception(error))
        where = f" in {during}" if during else ""
        super().__init__(f"pipeline {name!r} failed{where}: {sentence_of(error)}{advice_for(error)}")


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
    causes = list(_JAVA.finditer(text)) if kind.startswith("Py4J") else []
    if causes:
        kind, text = causes[-1]["kind"].rpartition(".")[2], causes[-1]["message"] or ""
    first = _STATE.sub("", text.strip().split("\n\n")[0].split("\nJVM stacktrace")[0]).strip().splitlines()
    return f"{kind}: {first[0][:_MAX_LENGTH]}" if first else kind


def advice_for(error: BaseException) -> str:
    """What to do about the usual mistakes with stores, jars and executors, as the end of a sentence; else nothing."""
    text = str(error)
    if isinstance(error, LaneError):
        return ""
    for pattern, advice in _ADVICE:
        if pattern.search(text):
            return f"; {advice}"
    if not isinstance(error, ImportError) and _MODULE.search(text):
        return f"; {_MISSING_ON_EXECUTORS}"
    return ""


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
