"""Dead letters of a pipeline: seen and redriven from Python, as `lanemq pipeline dead` does.

    letters = dead("/data/checkpoints/orders")
    for letter in letters.letters():
        print(letter.id, letter.key, letter.reason)
    letters.redrive("orders/broker-a/0/17")

Works on files, whether the pipeline runs or not, without Spark and without the broker. The rules guarded here: nothing
is changed here, a redrive is written down and carried out by a pass of the pipeline; a letter is redriven once; a
message that its key still has is never redriven as a letter, or it would be applied twice; what a person gave up, or
what may be a repeat, comes back only if it is named; no more bodies are in memory than a part of what is asked has.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow.parquet as pq

from lanemq.model.errors import UsageError
from lanemq.model.units import Millis
from lanemq.pipelines.checkpoint.checkpoint import identity_of, stage_place
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.sinks.parquet import ParquetSink
from lanemq.pipelines.stages.transitions.error_text import DISCARDED, LATE_OR_AGAIN
from lanemq.pipelines.stages.transitions.event import Message
from lanemq.pipelines.stages.transitions.redrives import LETTERS_PER_FILE, Identity, RedrivenLetter, Redrives

FOLDER: Final = "dead_letters"
"""Where they are in a checkpoint, unless the pipeline declares a sink for them."""

_UNREADABLE: Final = "cannot be decoded"
_DOUBTFUL: Final = re.compile(rf"number -?\d+ {LATE_OR_AGAIN}:")


class LetterState(StrEnum):
    """What became of a letter."""

    OPEN = "open"
    """The message was given up; it can be redriven."""
    DISCARDED = "discarded"
    """Given up by a person: redriven only by its name or its key."""
    DOUBTFUL = "doubtful"
    """Late or a repeat, which its key does not know: redriven only by its name, and perhaps applied twice then."""
    NOTICE = "notice"
    """The message cannot be decoded and was left in its key, where `parked` has it, or had it."""
    ASKED = "asked"
    """To be redriven; no pass has finished it."""
    REDRIVEN = "redriven"


_AMONG_ALL: Final = frozenset({LetterState.OPEN})
_BY_KEY: Final = _AMONG_ALL | {LetterState.DISCARDED}
_BY_NAME: Final = _BY_KEY | {LetterState.DOUBTFUL}


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that was set aside."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    key: str | None
    message_id: str | None
    stored: Millis
    """When the broker stored it."""
    tags: str | None
    reason: str
    attempts: int
    batch: int
    """The unit of work that set it aside, as sinks number them."""
    state: LetterState
    value: bytes | None = None
    """The body; only where it was asked for."""

    @property
    def id(self) -> str:
        """What commands take. A message that was set aside again has the same."""
        return f"{self.topic}/{self.broker}/{self.queue_id}/{self.offset}"

    @property
    def identity(self) -> Identity:
        return self.topic, self.broker, self.queue_id, self.offset, self.batch


class DeadMessages:
    """The dead letters of one pipeline; what `dead` returns."""

    def __init__(self, checkpoint: Path, folder: Path, query: str) -> None:
        self.checkpoint = checkpoint
        self.folder = folder
        self._batches = folder / f"lanemq_query={quote(f'{query}-dead', safe='')}"
        self._stage = stage_place(checkpoint)
        self._redrives = Redrives(self._stage)

    def letters(self, *, redriven: bool = False) -> list[DeadMessage]:
        """In the order in which they were set aside, without bodies; `redriven`: also those that were redriven."""
        found = self._found(bodies=False)
        return [each for each in found if redriven or each.state is not LetterState.REDRIVEN]

    def show(self, letter: str) -> list[DeadMessage]:
        """One message with its body; as often as it was set aside, the last one last."""
        found = list(self._found(bodies=True, only=letter))
        if not found:
            raise UsageError(f"there is no dead letter {letter!r}: `lanemq pipeline dead list`, or letters(), has them")
        return found

    def redrive(
        self, letter: str | None = None, *, key: str | None = None, everything: bool = False
    ) -> list[DeadMessage]:
        """Gives messages to the step again, behind everything of their keys so far. Gives those that were chosen,
        without bodies.
        """
        chosen = self.chosen(letter, key=key, everything=everything)
        taken = self._redrives.ask(self._with_bodies(sorted(each.identity for each in chosen)))
        return [each for each in chosen if each.identity in taken]

    def chosen(
        self, letter: str | None = None, *, key: str | None = None, everything: bool = False
    ) -> list[DeadMessage]:
        """What a redrive would be about: one letter, those of a key, or all that are open. Discarded ones are not
        among all, and doubtful ones only themselves.
        """
        if (letter is not None) + (key is not None) + everything != 1:
            raise UsageError("name one letter, or key=..., or say everything=True")
        self._need_step()
        found = self.letters(redriven=True)
        if not everything:
            found = [each for each in found if (each.id == letter if key is None else each.key == key)]
        states = _BY_NAME if letter is not None else _BY_KEY if key is not None else _AMONG_ALL
        chosen = [each for each in found if each.state in states]
        if not chosen and not everything:
            raise UsageError(_refusal(letter or f"of key {key!r}", found))
        return chosen

    def counts(self) -> dict[str, int]:
        """How many there are, by state."""
        found = [each.state for each in self._found(bodies=False)]
        return {state.value: found.count(state) for state in LetterState if state in found}

    def asked(self) -> int:
        """How many wait to be redriven."""
        return len(self._redrives.pending_letters() - self._redrives.done_letters())

    def _need_step(self) -> None:
        if not (self._stage / "stage.json").exists():
            raise UsageError(
                f"the pipeline of {self.checkpoint} has no step to give dead letters to: only those of Transitions are "
                f"redriven; send such messages again, corrected"
            )

    def _with_bodies(self, identities: list[Identity]) -> Iterator[RedrivenLetter]:
        """In the order given. Files are read once for each part that they have letters of."""
        for begin in range(0, len(identities), LETTERS_PER_FILE):
            part = identities[begin : begin + LETTERS_PER_FILE]
            wanted, units = set(part), {identity[-1] for identity in part}
            found = (each for each in self._found(bodies=True, units=units) if each.identity in wanted)
            yield from sorted(map(_letter, found), key=lambda each: each.identity)

    def _found(self, *, bodies: bool, units: set[int] | None = None, only: str | None = None) -> Iterator[DeadMessage]:
        asked = self._redrives.pending_letters()
        done = self._redrives.done_letters()
        for path in self._files(units):
            names = [name for name in pq.read_schema(path).names if bodies or name != "value"]
            for row in pq.read_table(path, columns=names, partitioning=None).to_pylist():
                found = _message(row, asked, done)
                if only is None or found.id == only:
                    yield found

    def _files(self, units: set[int] | None) -> list[Path]:
        folders = sorted((int(path.name.partition("=")[2]), path) for path in self._batches.glob("lanemq_batch=*"))
        return [
            file
            for number, folder in folders
            if units is None or number in units
            for file in sorted(folder.glob("*.parquet"))
        ]


def dead(pipeline: Pipeline | Path | str) -> DeadMessages:
    """The dead letters of a pipeline; takes the pipeline, or its checkpoint's folder if they are in there."""
    declared = pipeline if isinstance(pipeline, Pipeline) else None
    checkpoint = declared.folder if declared is not None else Path(str(pipeline)).absolute()
    known = identity_of(checkpoint)
    if known is None:
        raise UsageError(
            f"{checkpoint} is no checkpoint of a pipeline: it was never started, or the folder is another one"
        )
    return DeadMessages(checkpoint, _folder(checkpoint, declared), known.query)


def _folder(checkpoint: Path, declared: Pipeline | None) -> Path:
    sink = declared.dead_letters if declared is not None else None
    if isinstance(sink, ParquetSink):
        return sink.path
    if sink is not None:
        raise UsageError(
            f"dead letters go to the sink that the pipeline declares for them ({type(sink).__name__}): look at them "
            f"there; only those in Parquet files are listed and redriven here"
        )
    if not (checkpoint / FOLDER).is_dir():
        raise UsageError(
            f"{checkpoint} has no dead letters: the pipeline declares a sink for them; give the file that declares it"
        )
    return checkpoint / FOLDER


def _message(row: dict[str, Any], asked: set[Identity], done: set[Identity]) -> DeadMessage:
    stored = row["store_timestamp"]
    found = DeadMessage(
        topic=row["topic"],
        broker=row["broker"],
        queue_id=row["queue_id"],
        offset=row["queue_offset"],
        key=row["key"],
        message_id=row["message_id"],
        stored=Millis(0 if stored is None else round(stored.timestamp() * 1000)),
        tags=row.get("tags"),
        reason=row["reason"],
        attempts=row["attempts"],
        batch=row["batch"],
        state=_state(row),
        value=row.get("value"),
    )
    if found.identity in done:
        return replace(found, state=LetterState.REDRIVEN)
    return replace(found, state=LetterState.ASKED) if found.identity in asked else found


def _state(row: dict[str, Any]) -> LetterState:
    """Of a letter that nobody has asked for."""
    if _was_kept(row):
        return LetterState.NOTICE
    if row["reason"] == DISCARDED:
        return LetterState.DISCARDED
    return LetterState.DOUBTFUL if _DOUBTFUL.match(row["reason"]) else LetterState.OPEN


def _was_kept(row: dict[str, Any]) -> bool:
    """Letters without the column do not say it; of those that could not be decoded it is assumed."""
    waits = row.get("waits")
    return row["reason"].startswith(_UNREADABLE) if waits is None else bool(waits)


def _letter(each: DeadMessage) -> RedrivenLetter:
    place = (each.topic, each.broker, each.queue_id, each.offset)
    return RedrivenLetter(each.key, each.batch, Message(*place, each.tags, each.stored, each.message_id, each.value))


def _refusal(what: str, found: list[DeadMessage]) -> str:
    """Why nothing of it can be redriven."""
    if not found:
        return f"there is no dead letter {what}: `lanemq pipeline dead list`, or letters(), has them"
    last = found[-1]
    if last.state is LetterState.NOTICE:
        return (
            f"dead letter {what} only tells of a message that was left in its key {last.key!r}: redrive the key, with "
            f"`lanemq pipeline parked redrive`, or parked()"
        )
    perhaps = next((each for each in found if each.state is LetterState.DOUBTFUL), None)
    if perhaps is not None:
        return (
            f"dead letter {what} is perhaps a repeat of what was applied ({perhaps.reason}): to redrive it all "
            f"the same, name it, {perhaps.id}"
        )
    return f"dead letter {what} was redriven already, or will be: nothing was asked"
