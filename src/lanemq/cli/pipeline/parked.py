"""`lanemq pipeline parked`: `lanemq.pipelines.parked` on the command line.

What people see and decide here is the same that programs do; only words and exit codes are added.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import json_option
from lanemq.cli.output import Grid, body_for_json, plural, show, wall_time
from lanemq.cli.pipeline.place import NAME, PLACE, parked_of, refused
from lanemq.cli.pipeline.security import runs_securely

if TYPE_CHECKING:
    from lanemq.pipelines.operate.parked import ParkedLanes
    from lanemq.pipelines.stages.transitions.views import HeldLane


_DECIDED = {"redrive": "redrive", "discard": "discard", "discard_first": "discard --first-only"}
CARRIED_OUT = "what is decided is carried out by the running pipeline within a second, or by its next start"


@click.group()
def parked() -> None:
    """List keys that stand still, try them again, or give them up."""


@parked.command("list")
@PLACE
@NAME
@click.option("--held", is_flag=True, help="Also those that are tried again by themselves.")
@json_option
@runs_securely
def list_lanes(place: Path, name: str | None, held: bool, as_json: bool) -> None:
    """List keys that wait for a person."""
    lanes = parked_of(place, name)
    found, decided = lanes.waiting(held=held), lanes.requested()
    rows = [
        (each.lane, each.why.value, len(each.messages), each.failures, wall_time(each.since), each.reason)
        + ((_DECIDED.get(decided.get(each.lane, "")),) if decided else ())
        for each in found
    ]
    columns = ("key", "state", "messages", "failures", "since", "reason", *(("decided",) if decided else ()))
    show(
        as_json,
        lambda: [_document(each) | {"decided": decided.get(each.lane)} for each in found],
        Grid(columns, rows, "no key waits for a person"),
        *([CARRIED_OUT] if any(each.lane in decided for each in found) else []),
    )


@parked.command("show")
@PLACE
@click.argument("key")
@NAME
@json_option
@runs_securely
def show_lane(place: Path, key: str, name: str | None, as_json: bool) -> None:
    """Show KEY: its state, why it stands still, and the messages that wait."""
    with refused():
        lane = parked_of(place, name).show(key)
    waiting = lane.held.messages if lane.held is not None else ()
    rows = [(each.queue_id, each.offset, each.message_id, each.value) for each in waiting]
    show(
        as_json,
        lambda: {
            "key": key,
            "shard": lane.shard,
            "state": lane.state,
            "held": _document(lane.held) if lane.held is not None else None,
            "messages": [
                {"queue": each.queue_id, "offset": each.offset, "id": each.message_id,
                 "value": body_for_json(each.value or b'')} for each in waiting
            ],
        },
        f"key {key}: {'moving' if lane.held is None else lane.held.why.value}, state {lane.state!r}",
        *([lane.held.reason] if lane.held is not None else []),
        Grid(("queue", "offset", "id", "value"), rows, "no message waits"),
    )  # fmt: skip


_KEY = click.argument("key", required=False)
_ALL = click.option("--all", "everything", is_flag=True, help="Every key that stands still.")
_DRY = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


@parked.command()
@PLACE
@_KEY
@_ALL
@_DRY
@NAME
@json_option
@runs_securely
def redrive(place: Path, key: str | None, everything: bool, dry_run: bool, name: str | None, as_json: bool) -> None:
    """Try KEY's messages again, in order, before newer ones of the key."""
    lanes = parked_of(place, name)
    chosen = _chosen(lanes, key, everything)
    if not dry_run:
        lanes.redrive(key, everything=everything)
    _say("tried again", chosen, _waiting(chosen), dry_run, as_json)


@parked.command()
@PLACE
@_KEY
@_ALL
@click.option("--first-only", is_flag=True, help="Only the message that failed; those behind it are tried again.")
@_DRY
@NAME
@json_option
@runs_securely
def discard(
    place: Path, key: str | None, everything: bool, first_only: bool, dry_run: bool, name: str | None, as_json: bool
) -> None:
    """Give up KEY's waiting messages: they become dead letters, and the key goes on."""
    lanes = parked_of(place, name)
    chosen = _chosen(lanes, key, everything)
    if not dry_run:
        lanes.discard(key, everything=everything, first_only=first_only)
    messages = len(chosen) if first_only else _waiting(chosen)
    behind = _waiting(chosen) - messages
    what = "made a dead letter" if messages == 1 else "made dead letters"
    _say(f"{what}, {behind} behind tried again," if behind else what, chosen, messages, dry_run, as_json)


def _chosen(lanes: "ParkedLanes", key: str | None, everything: bool) -> "list[HeldLane]":
    if (key is None) != everything:
        raise click.UsageError("name one KEY, or say --all")
    with refused():
        return lanes.chosen(key, everything=everything)


def _waiting(lanes: "list[HeldLane]") -> int:
    return sum(len(each.messages) for each in lanes)


def _say(what: str, lanes: "list[HeldLane]", messages: int, dry_run: bool, as_json: bool) -> None:
    would = "would be" if dry_run else "will be"
    show(
        as_json,
        lambda: {"keys": [each.lane for each in lanes], "messages": messages, "asked": not dry_run},
        f"{plural(messages, 'message')} of {plural(len(lanes), 'key')} {would} "
        + (what.rstrip(",") if dry_run else f"{what} by the running pipeline, or by its next start"),
    )


def _document(lane: "HeldLane") -> dict[str, object]:
    return {
        "key": lane.lane,
        "shard": lane.shard,
        "state": lane.why.value,
        "reason": lane.reason,
        "messages": len(lane.messages),
        "failures": lane.failures,
        "since": wall_time(lane.since),
        "retry_at": wall_time(lane.retry_at) if lane.retry_at is not None else None,
    }
