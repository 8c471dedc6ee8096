"""`lanemq pipeline dead`: `lanemq.pipelines.dead_letters` on the command line.

The rule guarded here: whoever redrives a letter is told that it comes late, before it does.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import json_option
from lanemq.cli.output import Grid, body_for_json, plural, show, wall_time
from lanemq.cli.pipeline.parked import CARRIED_OUT
from lanemq.cli.pipeline.place import NAME, PLACE, dead_of, refused
from lanemq.cli.pipeline.security import runs_securely

if TYPE_CHECKING:
    from lanemq.pipelines.operate.dead_letters import DeadLetterRecord

LATE = "late: behind everything that their keys have by then, and each once"


@click.group()
def dead() -> None:
    """List messages that were set aside, look at them, and give them to the step again."""


@dead.command("list")
@PLACE
@NAME
@click.option("--key", help="Only those of this key.")
@click.option("--all", "everything", is_flag=True, help="Also those that were redriven.")
@json_option
@runs_securely
def list_letters(place: Path, name: str | None, key: str | None, everything: bool, as_json: bool) -> None:
    """List dead letters, in the order in which they were set aside.

    Their state: open (given up, may be redriven), discarded (by a person; redriven by name or --key only), doubtful
    (late or a repeat, its key cannot tell; redriven by name only), notice (it cannot be decoded and waits in its key:
    see lanemq pipeline parked), asked (will be redriven), redriven.
    """
    letters = dead_of(place, name).records(redriven=everything)
    found = [each for each in letters if key is None or each.key == key]
    rows = [(each.id, each.key, each.state.value, each.attempts, wall_time(each.stored), each.reason) for each in found]
    show(
        as_json,
        lambda: [_document(each) for each in found],
        Grid(("letter", "key", "state", "attempts", "stored", "reason"), rows, "no dead letters"),
        *([CARRIED_OUT] if any(each.state == "asked" for each in found) else []),
    )


@dead.command("show")
@PLACE
@click.argument("letter")
@NAME
@json_option
@runs_securely
def show_letter(place: Path, letter: str, name: str | None, as_json: bool) -> None:
    """Show LETTER (topic/broker/queue/offset) with its body; each time that it was set aside."""
    with refused():
        found = dead_of(place, name).show(letter)
    last = found[-1]
    rows = [(each.state.value, each.batch, each.attempts, each.reason) for each in found]
    show(
        as_json,
        lambda: [_document(each) | {"value": body_for_json(each.value or b"")} for each in found],
        f"{letter}: key {last.key}, id {last.message_id}, stored {wall_time(last.stored)}",
        Grid(("state", "batch", "attempts", "reason"), rows),
        Grid(("value",), [(last.value,)]),
    )


@dead.command()
@PLACE
@click.argument("letter", required=False)
@click.option("--key", help="Every open or discarded letter of this key.")
@click.option("--all", "everything", is_flag=True, help="Every open letter.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@NAME
@json_option
@runs_securely
def redrive(
    place: Path, letter: str | None, key: str | None, everything: bool, dry_run: bool, name: str | None, as_json: bool
) -> None:
    """Give LETTER to the step again, in the next pass: late, behind everything of its key so far, and once.

    The key went on without it, so the step sees it out of order, with `event.late`. If it fails again, the key follows
    its policy.
    """
    if (letter is not None) + (key is not None) + everything != 1:
        raise click.UsageError("name one LETTER, or say --key KEY or --all")
    letters = dead_of(place, name)
    with refused():
        take = letters.chosen if dry_run else letters.redrive
        chosen = take(letter, key=key, everything=everything)
    keys = {each.key for each in chosen}
    would = "would be" if dry_run else "will be"
    when = "" if dry_run else " by the running pipeline, or by its next start"
    show(
        as_json,
        lambda: {"letters": [each.id for each in chosen], "asked": not dry_run},
        f"{plural(len(chosen), 'dead letter')} of {plural(len(keys), 'key')} {would} given to the step again{when}",
        *([LATE] if chosen else []),
    )


def _document(letter: "DeadLetterRecord") -> dict[str, object]:
    return {
        "letter": letter.id,
        "topic": letter.topic,
        "broker": letter.broker,
        "queue": letter.queue_id,
        "offset": letter.offset,
        "key": letter.key,
        "id": letter.message_id,
        "tags": letter.tags,
        "stored": wall_time(letter.stored),
        "state": letter.state.value,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "batch": letter.batch,
    }
