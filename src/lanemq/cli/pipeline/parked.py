"""`lanemq pipeline parked`: lists, shows, redrives and discards held and parked keys.

The commands do what `lanemq.pipelines.parked` does in Python.
"""

import shlex
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import YES, CliError, InOrder, confirm, json_option
from lanemq.cli.output import Grid, body_for_json, plural, show
from lanemq.cli.pipeline.loading import (
    APPLIED_LATER,
    FILE_OR_CHECKPOINT,
    NAME,
    parked_lanes_at,
    pipeline_security_options,
    refused,
)
from lanemq.model.errors import UsageError

if TYPE_CHECKING:
    from lanemq.pipelines.operate.parked import HeldLane, ParkedLanes


_REQUESTED = {"redrive": "redrive", "discard": "discard", "discard_first": "discard --first-only"}


@click.group(cls=InOrder)
def parked() -> None:
    """List, show, redrive and discard held and parked keys.

    A key is held while it waits for its next retry or a missing message, and parked when its retries are used up.
    """


@parked.command("list")
@FILE_OR_CHECKPOINT
@NAME
@click.option("--held", is_flag=True, help="Include keys that are retried automatically.")
@json_option
@pipeline_security_options
def list_lanes(place: str, name: str | None, held: bool, as_json: bool) -> None:
    """List keys that wait for an operator."""
    lanes = parked_lanes_at(place, name)
    keys = lanes.keys(held=held)
    requested = any(key.requested for key in keys)
    rows = [
        (key.key, key.state, key.messages, key.failures, key.since, key.reason)
        + ((_REQUESTED.get(key.requested or ""),) if requested else ())
        for key in keys
    ]
    columns = ("key", "state", "messages", "failures", "since", "reason", *(("requested",) if requested else ()))
    show(
        as_json,
        lambda: keys,
        Grid(columns, rows, "no key waits for an operator"),
        *([APPLIED_LATER] if requested else []),
    )


@parked.command("show")
@FILE_OR_CHECKPOINT
@click.argument("key")
@NAME
@json_option
@pipeline_security_options
def show_lane(place: str, key: str, name: str | None, as_json: bool) -> None:
    """Show the state of KEY, the reason, and the messages that wait."""
    from lanemq.pipelines.operate.parked import waiting_key

    with refused():
        lane = parked_lanes_at(place, name).show(key)
    waiting = lane.held.messages if lane.held is not None else ()
    rows = [(each.queue_id, each.offset, each.message_id, each.value) for each in waiting]
    show(
        as_json,
        lambda: {
            "key": key,
            "shard": lane.shard,
            "state": lane.state,
            "held": waiting_key(lane.held) if lane.held is not None else None,
            "messages": [
                {"topic": each.topic, "broker": each.broker, "queue": each.queue_id, "offset": each.offset,
                 "id": each.message_id, "value": body_for_json(each.value or b'')} for each in waiting
            ],
        },
        f"key {key}: {'moving' if lane.held is None else lane.held.why.value}, state {lane.state!r}",
        *([lane.held.reason] if lane.held is not None else []),
        Grid(("queue", "offset", "id", "value"), rows, "no message waits"),
    )  # fmt: skip


_KEY = click.argument("key", required=False)
_ALL = click.option("--all", "everything", is_flag=True, help="Every held or parked key.")
_DRY = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


@parked.command()
@FILE_OR_CHECKPOINT
@_KEY
@_ALL
@_DRY
@NAME
@json_option
@pipeline_security_options
def redrive(place: str, key: str | None, everything: bool, dry_run: bool, name: str | None, as_json: bool) -> None:
    """Process the waiting messages of KEY again.

    They are processed in order, before newer messages of the key.
    """
    lanes = parked_lanes_at(place, name)
    chosen = _chosen(lanes, key, everything)
    if not dry_run:
        lanes.redrive(key, everything=everything)
    _report("retried", chosen, _waiting(chosen), dry_run, as_json)


@parked.command()
@FILE_OR_CHECKPOINT
@_KEY
@_ALL
@click.option("--first-only", is_flag=True, help="Only the message that failed; those after it are retried.")
@_DRY
@YES
@NAME
@json_option
@pipeline_security_options
def discard(
    place: str,
    key: str | None,
    everything: bool,
    first_only: bool,
    dry_run: bool,
    yes: bool,
    name: str | None,
    as_json: bool,
) -> None:
    """Turn the waiting messages of KEY into dead letters.

    The key continues without them.
    """
    lanes = parked_lanes_at(place, name)
    chosen = _chosen(lanes, key, everything)
    messages = len(chosen) if first_only else _waiting(chosen)
    behind = _waiting(chosen) - messages
    what = "turned into a dead letter" if messages == 1 else "turned into dead letters"
    what += f" (and {plural(behind, 'later message')} retried)" if behind else ""
    if not dry_run:
        rows = [(each.lane, each.why.value, len(each.messages), each.reason) for each in chosen]
        question = f"{plural(messages, 'message')} of {plural(len(chosen), 'key')} will be {what}"
        confirm(yes, question, Grid(("key", "state", "messages", "reason"), rows))
        lanes.discard(key, everything=everything, first_only=first_only)
    _report(what, chosen, messages, dry_run, as_json)


def _chosen(lanes: "ParkedLanes", key: str | None, everything: bool) -> "list[HeldLane]":
    if (key is None) != everything:
        raise click.UsageError("give either KEY or --all")
    try:
        return lanes.chosen(key, everything=everything)
    except UsageError as error:
        given = click.get_current_context().params
        name = [] if given["name"] is None else ["--name", given["name"]]
        listing = shlex.join(["lanemq", "pipeline", "parked", "list", given["place"], "--held", *name])
        raise CliError(str(error).replace("waiting(held=True)", f"`{listing}`")) from error


def _waiting(lanes: "list[HeldLane]") -> int:
    return sum(len(each.messages) for each in lanes)


def _report(what: str, lanes: "list[HeldLane]", messages: int, dry_run: bool, as_json: bool) -> None:
    would = "would be" if dry_run else "will be"
    show(
        as_json,
        lambda: {"keys": [each.lane for each in lanes], "messages": messages, "asked": not dry_run},
        f"{plural(messages, 'message')} of {plural(len(lanes), 'key')} {would} "
        + (what if dry_run else f"{what} by the running pipeline, or by its next start"),
    )
