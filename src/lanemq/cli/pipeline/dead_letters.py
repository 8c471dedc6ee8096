"""`lanemq pipeline dead-letters`: lists, shows and redrives dead letters.

The commands do what `lanemq.pipelines.dead_letters` does in Python. A redrive says that the message comes late, before
it does.
"""

from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from lanemq.cli.options import InOrder, json_option
from lanemq.cli.output import Grid, body_for_json, cell, plural, show
from lanemq.cli.pipeline.loading import (
    APPLIED_LATER,
    FILE_OR_CHECKPOINT,
    NAME,
    dead_letters_at,
    pipeline_security_options,
    refused,
)

if TYPE_CHECKING:
    from lanemq.pipelines.operate.dead_letters import DeadLetterRecord

LATE = "they come late: after everything that their keys have by then, and once each"


@click.group("dead-letters", cls=InOrder)
def dead_letters() -> None:
    """List and show dead letters, and redrive them.

    A dead letter is a message that the pipeline gave up; its key continued without it.
    """


@dead_letters.command("list")
@FILE_OR_CHECKPOINT
@NAME
@click.option("--key", help="Only dead letters of this key.")
@click.option("--all", "everything", is_flag=True, help="Include dead letters that were redriven, and settled notices.")
@json_option
@pipeline_security_options
def list_dead_letters(place: str, name: str | None, key: str | None, everything: bool, as_json: bool) -> None:
    """List dead letters, oldest first.

    \b
    States:
      open       given up; can be redriven
      discarded  by an operator; redriven only by ID or --key
      doubtful   late or a repeat; redriven only by ID, and then perhaps applied twice
      notice     cannot be decoded and waits in its key: see lanemq pipeline parked
      settled    was a notice; its message does not wait any more
      asked      will be redriven
      redriven   was redriven
    """
    letters = [each for each in dead_letters_at(place, name).records(redriven=True) if key is None or each.key == key]
    found = [each for each in letters if everything or each.state not in ("redriven", "settled")]
    rows = [(each.id, each.key, each.state.value, each.attempts, each.stored_at, each.reason) for each in found]
    show(
        as_json,
        lambda: found,
        Grid(("dead letter", "key", "state", "attempts", "stored", "reason"), rows, "no dead letters"),
        *([APPLIED_LATER] if any(each.state == "asked" for each in found) else []),
        *([_not_listed(letters)] if len(found) < len(letters) else []),
    )


@dead_letters.command("show")
@FILE_OR_CHECKPOINT
@click.argument("id")
@NAME
@json_option
@pipeline_security_options
def show_dead_letter(place: str, id: str, name: str | None, as_json: bool) -> None:
    """Show the dead letter ID with its body.

    An ID is topic/broker/queue/offset. A message that was given up several times is listed once for each time.
    """
    with refused():
        found = dead_letters_at(place, name).show(id)
    last = found[-1]
    rows = [(each.state.value, each.batch, each.attempts, each.reason) for each in found]
    show(
        as_json,
        lambda: [{**to_builtins(each), "value": body_for_json(each.value or b"")} for each in found],
        f"{id}: key {last.key}, message id {last.message_id}, stored {cell(last.stored_at)}",
        Grid(("state", "batch", "attempts", "reason"), rows),
        Grid(("value",), [(last.value,)]),
    )


@dead_letters.command()
@FILE_OR_CHECKPOINT
@click.argument("id", required=False)
@click.option("--key", help="Every open or discarded dead letter of this key.")
@click.option("--all", "everything", is_flag=True, help="Every open dead letter.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@NAME
@json_option
@pipeline_security_options
def redrive(
    place: str, id: str | None, key: str | None, everything: bool, dry_run: bool, name: str | None, as_json: bool
) -> None:
    """Pass the dead letter ID to the step again, once.

    Its key has continued without it, so the message comes late: after everything that the key has by then, with
    `event.late` set. If it fails again, the key follows its failure policy.
    """
    if (id is not None) + (key is not None) + everything != 1:
        raise click.UsageError("give exactly one of ID, --key KEY and --all")
    letters = dead_letters_at(place, name)
    with refused():
        take = letters.chosen if dry_run else letters.redrive
        chosen = take(id, key=key, everything=everything)
    keys = {each.key for each in chosen}
    would = "would be" if dry_run else "will be"
    when = "" if dry_run else " by the running pipeline, or by its next start"
    show(
        as_json,
        lambda: {"dead_letters": [each.id for each in chosen], "asked": not dry_run},
        f"{plural(len(chosen), 'dead letter')} of {plural(len(keys), 'key')} {would} passed to the step again{when}",
        *([LATE] if chosen else []),
    )


def _not_listed(letters: "list[DeadLetterRecord]") -> str:
    """A line about the dead letters that the list leaves out because nothing is left to do with them."""
    states = [each.state.value for each in letters]
    counts = ((states.count("redriven"), "redriven dead letter"), (states.count("settled"), "settled notice"))
    return f"not listed: {' and '.join(plural(*each) for each in counts if each[0])}; --all lists all"
