"""`lanemq group`: list, describe and delete groups, and reset their offsets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from lanemq.cli.options import YES, CliError, InOrder, WrongUsage, asks_server, confirm, parse_time
from lanemq.cli.output import Grid, duration_text, plural, show
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin, leader_note
from lanemq.client.admin.dead_letters import count_dead_letters
from lanemq.client.admin.group_offsets import Position
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.admin.queue_progress import QueueBacklog, queue_progress
from lanemq.client.admin.resets import reset_as_shown, shown_changes
from lanemq.client.admin.retries import DelayedRetries
from lanemq.client.admin.views import AtOffset, AtTime, GroupDescription, OffsetChange
from lanemq.client.admin.watching import WatchAdmin, waiting_keys
from lanemq.clock import SystemClock
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.wire.lane_bodies import CompareAnswer, CoordinateAnswer, FrontClientBody

if TYPE_CHECKING:
    from lanemq.cli.pipeline.status import PipelineWaiting


@click.group(cls=InOrder)
def group() -> None:
    """List, describe and delete consumer groups, and reset their offsets."""


@group.command("list")
@click.option(
    "--pipeline",
    "pipelines",
    multiple=True,
    metavar="FILE|CHECKPOINT",
    help="A pipeline whose waiting keys and dead letters count for its group; may be repeated.",
)
@asks_server
def list_groups(pipelines: Sequence[str], server: str, as_json: bool) -> None:
    """List all groups with their members, lag, held and parked keys, and topics.

    "lag" counts messages that are not finished. "held" and "parked" count keys that failed: those with retries left,
    in a member or at the broker, and those that wait for you (lanemq parked), also in a member's memory. "dead" counts
    dead letters (lanemq dead). Messages that are parked at the broker and dead letters are not part of the lag.

    Keys and dead letters of a pipeline are in its checkpoint, which no broker knows: name it with --pipeline.
    """
    checkpoints = _read_checkpoints(pipelines)
    with WatchAdmin(server) as admin:
        found, _ = admin.describe_groups()
        held = admin.all_held_lanes((each.group, at) for each in found for at in each.queues)
        dead = count_dead_letters(admin)
        brokers = admin.brokers()
        retries = DelayedRetries(server).read((each.name, each.info) for each in brokers)
    with ParkedAdmin(server) as parked_admin:
        lanes = waiting_keys(parked_admin.lanes(), held.lanes, retries.retries)
    waiting = {
        each.group: _with_checkpoints(
            (lanes[each.group, False], lanes[each.group, True], dead[each.group]),
            [one for one in checkpoints if one.group == each.group],
        )
        for each in found
    }
    rows = [
        (
            each.group,
            len(each.members),
            None if each.broadcasting else each.lag,
            *waiting[each.group],
            ", ".join(_shown_topics(each)),
        )
        for each in found
    ]
    own = {each.group for each in checkpoints}  # their members hold no keys: the checkpoint has them
    show(
        as_json,
        lambda: [_listed_document(each, waiting[each.group]) for each in found],
        Grid(
            ("group", "members", "lag", "held", "parked", "dead", "topics"),
            rows,
            "no groups yet; a consumer creates its group when it starts",
        ),
        *(
            f"group {each.group}: keys that {each.owner} holds are not all counted: {each.why}"
            for each in held.unknown
            if each.group not in own
        ),
        *([retries.note] if retries.note else []),
        *(f"broker {each.name}: messages in retry are not counted: {each.error}" for each in brokers if each.error),
        *(_not_listed(each) for each in checkpoints if each.group not in waiting),
    )


def _listed_document(each: GroupDescription, waiting: Sequence[int | None]) -> dict[str, object]:
    return {
        "group": each.group,
        "members": len(each.members),
        "topics": _topics(each),
        "lag": None if each.broadcasting else each.lag,
        **dict(zip(("held", "parked", "dead"), waiting, strict=True)),
    }


def _read_checkpoints(places: Sequence[str]) -> "list[PipelineWaiting]":
    from lanemq.cli.pipeline.status import waiting_in

    return [waiting_in(place) for place in places]


def _with_checkpoints(
    counted: tuple[int, int, int], checkpoints: "Sequence[PipelineWaiting]"
) -> tuple[int, int, int | None]:
    """Held and parked keys and dead letters, with those of pipelines; None if a part is not known."""
    held, parked, dead = counted
    letters = [each.dead for each in checkpoints]
    return (
        held + sum(each.held for each in checkpoints),
        parked + sum(each.parked for each in checkpoints),
        None if None in letters else dead + sum(each or 0 for each in letters),
    )


def _not_listed(pipeline: "PipelineWaiting") -> str:
    """Why what waits in a pipeline stands in no row."""
    keys = f"{plural(pipeline.held, 'held key')} and {plural(pipeline.parked, 'parked key')}"
    why = "has no group" if pipeline.group is None else f"commits as group {pipeline.group}, which no broker has yet"
    return f"pipeline {pipeline.pipeline} {why}: its {keys} are in no row"


@group.command()
@click.argument("name")
@asks_server
def describe(name: str, server: str, as_json: bool) -> None:
    """Show the queues and members of group NAME.

    For each queue: offset, end, lag, owner, epoch, and the time left of the owner's lease. "Lag time" is the age of
    the oldest message that the group has not finished; it is unknown while the broker rebuilds lost indexes.
    """
    with Admin(server) as admin:
        found = existing_group(admin, name)
        leases = {lease.queue: lease for lease in admin.locks(name)}
        clients = admin.front_clients(found)
    with ParkedAdmin(server) as parked_admin:
        parked = parked_admin.lanes(name)
    queues = [each for each in queue_progress(found, leases, server, SystemClock().wall()) if each.worth_showing]
    oldest = None
    if not any(each.age_unknown for each in queues):
        oldest = max((each.lag_ms for each in queues if each.lag_ms is not None), default=None)
    show(
        as_json,
        lambda: {
            "group": name,
            "lag": None if found.broadcasting else found.lag,
            "lag_ms": oldest,
            "parked": {"lanes": len(parked), "messages": sum(lane.messages for lane in parked)},
            "members": found.members,
            "clients": clients,
            "subscriptions": dict(found.subscriptions),
            "queues": [each.document() for each in queues],
            "coordinator": found.coordinator or None,
            "note": found.note,
        },
        f"group {name}: {plural(len(found.members), 'member')}"
        + ("" if found.broadcasting else f", lag {plural(found.lag, 'message')}")
        + (f", the oldest is {duration_text(oldest)} old" if oldest is not None else "")
        + (f", coordinated by {found.coordinator}{leader_note(found.leader)}" if found.coordinator else ""),
        _grid_of_queues(
            _COLUMNS,
            [_row(each) for each in queues],
            [each.at.queue for each in queues],
            "each member keeps its own offsets" if found.broadcasting else "the group has no offsets yet",
        ),
        Grid(
            ("member", "address", "language"),
            [(each.client_id, each.address, each.language) for each in found.members],
            "no member is online",
        ),
        *([_grid_of_clients(clients)] if clients else []),
        *([_parked(parked)] if parked else []),
        *([found.note] if found.note else []),
    )


def _grid_of_clients(clients: Sequence[FrontClientBody]) -> Grid:
    return Grid(
        ("gRPC client", "language", "version", "has"),
        [(each.id, each.language, each.version, plural(each.held, "message")) for each in clients],
        "",
    )


@group.command()
@click.argument("group")
@click.option("--topic", required=True, help="Topic whose offsets are reset.")
@click.option(
    "--to",
    required=True,
    metavar="first|last|TIME|OFFSET",
    help="New position. TIME is ISO 8601, or 10m for ten minutes ago.",
)
@click.option("--queue", "number", type=click.IntRange(0), metavar="N", help="Reset only this queue.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@YES
@asks_server
def reset(
    group: str, topic: str, to: str, number: int | None, dry_run: bool, yes: bool, server: str, as_json: bool
) -> None:
    """Reset the offsets of GROUP in a topic.

    Moving back repeats messages, moving forward skips messages. A reset forgets what the group has finished above its
    offset, so those messages are repeated too. What you confirm is what is done: if the group or the topic changed in
    the meantime so that other messages would be skipped or repeated, nothing is moved.
    """
    position, queues = _position(to), None if number is None else [number]
    with Admin(server) as admin:
        # Resetting an unknown group would create it, and leave the group that was meant where it is.
        members = len(existing_group(admin, group).members)
        plan = admin.reset_offsets(group, topic, to=position, queues=queues, dry_run=True)
        if not plan:
            raise WrongUsage(f"topic {topic} has no queue {number}; see lanemq topic describe {topic}")
        if not dry_run:
            online = f"; {plural(members, 'member')} online may process messages twice: stop them first"
            question = f"the offsets of group {group} in {topic} will be reset{online if members else ''}"
            confirm(yes, question, _change_grid(plan))
            if yes:  # no person has seen the plan
                plan = admin.reset_offsets(group, topic, to=position, queues=queues)
            else:
                plan, why = reset_as_shown(admin, group, topic, shown_changes(plan), to=position, queues=queues)
                if why:
                    raise CliError(f"nothing was moved: {why}; run the command again to see what it would do now")
    _show_changes(plan, dry_run, as_json)


@group.command()
@click.argument("name")
@click.option("--out", is_flag=True, help="Move the group from the coordinator back to the brokers.")
@click.option("--confirm-queues", "confirms", is_flag=True, help="Let new queues of the group's topics get owners.")
@click.option("--dry-run", is_flag=True, help="Only show what would happen.")
@YES
@asks_server
def coordinate(name: str, out: bool, confirms: bool, dry_run: bool, yes: bool, server: str, as_json: bool) -> None:
    """Move a group of an Apache cluster to its coordinator, or back (--out).

    The group continues at the same offsets. Stop its members first, and start them again afterwards: LaneMQ's members
    find the coordinator by themselves. Other members get no messages of a coordinated group.

    Queues that are added to a topic later get no owner until you confirm them (--confirm-queues), because keys may
    have moved there: wait until the older messages of these keys are done.
    """
    with CoordinatedAdmin(server) as admin:
        if confirms:
            _confirm_queues(admin, name, dry_run=dry_run, yes=yes, as_json=as_json)
            return
        plan = admin.move(name, out=out)
        if plan.problems or plan.moved:
            why = "; ".join(plan.problems) or "it is coordinated already"
            raise CliError(f"group {name} is not moved: {why}")
        if not dry_run:
            question = f"group {name} will be moved {'back to the brokers' if out else 'to the coordinator'}"
            confirm(yes, question, _move_grid(plan))
            plan = admin.move(name, out=out, apply=True)
            if plan.problems:
                raise CliError(f"group {name} is not moved: {'; '.join(plan.problems)}")
    document = {"moved": plan.moved, "queues": msgspec.to_builtins(plan.queues)}
    show(as_json, lambda: document, _move_grid(plan))


def _confirm_queues(admin: CoordinatedAdmin, name: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    new = admin.confirm_queues(name).queues
    rows = [(each.topic, each.broker, each.queue_id) for each in new]
    grid = Grid(("topic", "broker", "queue"), rows, empty="no queue waits for a confirmation")
    if new and not dry_run:
        confirm(yes, f"{plural(len(new), 'new queue')} will get owners, in all groups", grid)
        admin.confirm_queues(name, apply=True)
    show(as_json, lambda: {"confirmed": bool(new) and not dry_run, "queues": msgspec.to_builtins(new)}, grid)


def _move_grid(plan: CoordinateAnswer) -> Grid:
    """Where the group continues, and what brokers will deliver again because they do not keep finished ranges."""
    rows = [(each.topic, each.broker, each.queue_id, each.offset, each.finished) for each in plan.queues]
    return Grid(("topic", "broker", "queue", "offset", "finished above"), rows, empty="the group has no offsets yet")


@group.command()
@click.argument("name")
@click.option("--drop", is_flag=True, help="Drop the group's progress above the last message that is the same.")
@YES
@asks_server
def compare(name: str, drop: bool, yes: bool, server: str, as_json: bool) -> None:
    """Compare what a coordinated group has read with what its brokers have.

    A broker that lost the end of its log, or a topic that was created anew, has other messages at offsets that the
    group has finished. The group stands in such a queue. With --drop it continues there with the first message that
    may be another one; parked messages above that are lost.
    """
    with CoordinatedAdmin(server) as admin:
        found = admin.compare(name)
        if drop and found.others:
            confirm(yes, f"group {name} forgets what it has done from these offsets on", _others_grid(found))
            found = admin.compare(name, apply=True)
    if found.problems:
        raise CliError(f"not all queues of group {name} could be compared: {'; '.join(found.problems)}")
    dropped = drop and bool(found.others)
    document = {"compared": found.compared, "others": msgspec.to_builtins(found.others), "dropped": dropped}
    show(as_json, lambda: document, _others_grid(found))


def _others_grid(found: CompareAnswer) -> Grid:
    rows = [
        (each.topic, each.broker, each.queue_id, each.offset, each.same_below, each.finished, each.parked)
        for each in found.others
    ]
    columns = ("topic", "broker", "queue", "offset", "same below", "finished above", "parked above")
    same = f"{plural(found.compared, 'queue')} compared: the brokers have what the group has read"
    return Grid(columns, rows, empty=same)


@group.command()
@click.argument("name")
@YES
@asks_server
def delete(name: str, yes: bool, server: str, as_json: bool) -> None:
    """Delete group NAME, which must have no members.

    Its offsets, its settings and its parked lanes are deleted; dead letters and the messages of its topics stay. A
    group of that name that starts later is a new one.
    """
    with Admin(server) as admin, ParkedAdmin(server) as parked_admin:
        found = existing_group(admin, name)
        if found.members:
            count = plural(len(found.members), "member")
            raise CliError(f"group {name} has {count} online: stop them first; nothing was deleted")
        lanes = parked_admin.lanes(name)
        parked = f" and {plural(len(lanes), 'parked key')}" if lanes else ""
        unfinished = plural(found.lag, "message")
        confirm(yes, f"group {name} will be deleted, with its offsets{parked}; it has not finished {unfinished}")
        admin.delete_group(name)
    show(
        as_json,
        lambda: {"group": name, "deleted": True, "lag": found.lag, "parked": len(lanes)},
        f"group {name} was deleted",
    )


def existing_group(admin: Admin, name: str) -> GroupDescription:
    """The group's description. Raises `CliError` for an unknown group, which a broker describes as an empty one."""
    found = admin.describe_group(name)
    if not found.members and not found.queues and name not in admin.groups():
        raise CliError(f"group {name!r} is unknown: it has no offsets and no member is online; see lanemq group list")
    return found


def _grid_of_queues(
    columns: Sequence[str], rows: Sequence[Sequence[object]], queues: Sequence[MessageQueue], empty: str
) -> Grid:
    """A row for each queue, with its broker behind the topic if there are several: each of them has a queue 0."""
    if len({queue.broker for queue in queues}) < 2:
        return Grid(tuple(columns), rows, empty)
    topic, *others = columns
    named = [(row[0], queue.broker, *row[1:]) for row, queue in zip(rows, queues, strict=True)]
    return Grid((topic, "broker", *others), named, empty)


_COLUMNS = ("topic", "queue", "offset", "end", "lag", "lag time", "owner", "epoch", "lease left")


def _row(each: QueueBacklog) -> tuple[object, ...]:
    at = each.at
    return (
        at.queue.topic,
        at.queue.queue_id,
        at.offset,
        at.end,
        at.lag,
        "unknown" if each.age_unknown else duration_text(each.lag_ms),
        at.owner,
        at.epoch,
        duration_text(each.lease_ms),
    )


def _parked(lanes: Sequence[ParkedLaneView]) -> str:
    """Parked messages are not part of the lag: the committed offset has passed them."""
    count = sum(lane.messages for lane in lanes)
    see = f"see lanemq parked list --group {lanes[0].group}"
    return f"{plural(count, 'message')} in {plural(len(lanes), 'parked lane')}; {see}"


def _topics(found: GroupDescription) -> list[str]:
    return sorted({each.queue.topic for each in found.queues} | set(found.subscriptions))


def _shown_topics(found: GroupDescription) -> list[str]:
    """The topics without the group's retry topic, which is shown only while messages wait in it."""
    behind = {each.queue.topic for each in found.queues if each.lag > 0}
    return [topic for topic in _topics(found) if topic in behind or not topic.startswith(RETRY_PREFIX)]


def _position(text: str) -> Position:
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    if text.isdecimal():
        return AtOffset(QueueOffset(int(text)))
    return AtTime(parse_time(text, "--to"))


def _change_grid(plan: tuple[OffsetChange, ...]) -> Grid:
    rows = [(each.queue.topic, each.queue.queue_id, each.before, each.after, _effect(each)) for each in plan]
    columns = ("topic", "queue", "offset", "new offset", "effect")
    return _grid_of_queues(columns, rows, [each.queue for each in plan], "nothing to show")


def _show_changes(plan: tuple[OffsetChange, ...], dry_run: bool, as_json: bool) -> None:
    show(
        as_json,
        lambda: {
            "dry_run": dry_run,
            "changes": [
                {
                    "topic": each.queue.topic,
                    "broker": each.queue.broker,
                    "queue": each.queue.queue_id,
                    "before": each.before,
                    "after": each.after,
                    "repeats": each.repeats,
                    "skips": each.skips,
                }
                for each in plan
            ],
        },
        _change_grid(plan),
        "nothing was changed (--dry-run)" if dry_run else "offsets were reset",
    )


def _effect(change: OffsetChange) -> str:
    if change.before is None:
        return "starts there"
    effects = (("skips", change.skips), ("repeats", change.repeats))
    return ", ".join(f"{verb} {plural(count, 'message')}" for verb, count in effects if count) or (
        "unchanged" if change.before == change.after else "moves over finished messages"
    )
