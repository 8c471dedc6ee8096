"""`lanemq parked`: lanes whose retries are used up. Look at them, run them again, or give messages up.

The rule guarded here: nothing is discarded that was not looked at. A discard names the last offset that was read just
before, so a message that joined the lane since stays in it, and without `--yes` it is only shown.
"""

import time
from collections.abc import Sequence

import click

from lanemq.cli.options import Failed, Misused, asks_server
from lanemq.cli.output import Grid, plural, show
from lanemq.cli.parked_views import lane_document, lane_grid, message_document, message_grid, sentence
from lanemq.client.admin.parked import ANY_KEY, AnyKey, ParkedAdmin, ParkedLaneView
from lanemq.model.errors import OffsetNotFound
from lanemq.model.units import QueueOffset

PREVIEWED = 5
"""Messages of each lane in a preview."""

F_GROUP = click.option("--group", required=True, help="Whose lanes.")
F_TOPIC = click.option("--topic", help="Only this topic's.")
F_ALL = click.option("--all", "every", is_flag=True, help="All parked lanes of the group (and topic), instead of KEY.")
F_KEYLESS = click.option("--keyless", is_flag=True, help="The lane of messages without a key, instead of KEY.")
F_DRY = click.option("--dry-run", is_flag=True, help="Only show what would happen.")


@click.group()
def parked() -> None:
    """List, show, redrive and discard lanes that were parked after their retries."""


@parked.command("list")
@click.option("--group", help="Only this group's.")
@F_TOPIC
@asks_server
def list_lanes(group: str | None, topic: str | None, server: str, as_json: bool) -> None:
    """List parked lanes: how many messages wait, since when, and why."""
    with ParkedAdmin(server) as admin:
        lanes = admin.lanes(group, topic)
    show(as_json, lambda: list(map(lane_document, lanes)), lane_grid(lanes, _none_parked(group, topic)))


@parked.command("show")
@click.argument("key", required=False)
@F_GROUP
@F_TOPIC
@F_KEYLESS
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Most messages shown.")
@asks_server
def show_lane(
    key: str | None, group: str, topic: str | None, keyless: bool, limit: int, server: str, as_json: bool
) -> None:
    """Show the parked messages of KEY, in the order in which a redrive runs them."""
    with ParkedAdmin(server) as admin:
        (lane,) = _chosen(admin, group, topic, _wanted_key(key, keyless, every=False))
        messages = admin.messages(lane, limit)
    show(
        as_json,
        lambda: {**lane_document(lane), "parked": list(map(message_document, messages))},
        sentence(lane),
        message_grid(messages),
        *([f"and {lane.messages - len(messages)} more; see --limit"] if lane.messages > len(messages) else []),
    )


@parked.command()
@click.argument("key", required=False)
@F_GROUP
@F_TOPIC
@F_ALL
@F_KEYLESS
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Lanes per second at most; default: no limit.")
@F_DRY
@asks_server
def redrive(
    key: str | None,
    group: str,
    topic: str | None,
    every: bool,
    keyless: bool,
    rate: float | None,
    dry_run: bool,
    server: str,
    as_json: bool,
) -> None:
    """Run the parked lane of KEY again: in order, one message at a time, before newer messages of the key."""
    with ParkedAdmin(server) as admin:
        lanes = _chosen(admin, group, topic, _wanted_key(key, keyless, every))
        if dry_run:
            _preview(admin, lanes, None, "would be redriven", as_json)
            return
        begun = []
        for number, lane in enumerate(lanes):
            if rate and number:
                time.sleep(1 / rate)
            if _redriven(admin, lane):
                begun.append(lane)
    show(
        as_json,
        lambda: {"dry_run": False, "redriven": list(map(lane_document, begun))},
        lane_grid(begun, "nothing to do: the owners run these lanes already"),
        f"{plural(len(begun), 'lane')} redriven: a queue's owner begins within a second, or as soon as it has one",
    )


@parked.command()
@click.argument("key", required=False)
@F_GROUP
@F_TOPIC
@F_ALL
@F_KEYLESS
@click.option("--messages", "how_many", required=True, metavar="N|all", help="The first N of each lane, or all.")
@F_DRY
@click.option("--yes", is_flag=True, help="Really: discarded messages are gone for this group.")
@asks_server
def discard(
    key: str | None,
    group: str,
    topic: str | None,
    every: bool,
    keyless: bool,
    how_many: str,
    dry_run: bool,
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Give up the first messages of the parked lane of KEY; the lane goes on with those behind them."""
    most = _count(how_many)
    with ParkedAdmin(server) as admin:
        lanes = _chosen(admin, group, topic, _wanted_key(key, keyless, every))
        if dry_run:
            _preview(admin, lanes, most, "would be discarded", as_json)
            return
        if not yes:
            count = sum(lane.messages if most is None else min(most, lane.messages) for lane in lanes)
            raise Failed(f"{plural(count, 'message')} would be discarded: look with --dry-run, then repeat with --yes")
        gone = [(lane, admin.discard(lane, _through(admin, lane, most))) for lane in lanes]
    show(
        as_json,
        lambda: {"dry_run": False, "discarded": [{**lane_document(lane), "discarded": count} for lane, count in gone]},
        f"{plural(sum(count for _, count in gone), 'message')} of {plural(len(gone), 'lane')} discarded",
    )


def _wanted_key(key: str | None, keyless: bool, every: bool) -> str | AnyKey | None:
    if (key is not None) + keyless + every != 1:
        raise Misused("say which lane: give a KEY, or --keyless, or, where it is offered, --all")
    return ANY_KEY if every else key


def _chosen(admin: ParkedAdmin, group: str, topic: str | None, key: str | AnyKey | None) -> list[ParkedLaneView]:
    lanes = admin.lanes(group, topic, key)
    if not lanes:
        raise Failed(f"{_none_parked(group, topic, key)}; see lanemq parked list")
    if not isinstance(key, AnyKey) and len(lanes) > 1:
        topics = ", ".join(sorted({lane.queue.topic for lane in lanes}))
        raise Failed(f"key {key!r} is parked more than once: choose a topic with --topic ({topics}), or use --all")
    return lanes


def _redriven(admin: ParkedAdmin, lane: ParkedLaneView) -> bool:
    try:
        return admin.redrive(lane)
    except OffsetNotFound:
        return False  # finished or discarded while we waited for its turn


def _through(admin: ParkedAdmin, lane: ParkedLaneView, most: int | None) -> QueueOffset:
    if most is None or most >= lane.messages:
        return lane.last
    return QueueOffset(admin.messages(lane, most)[-1].queue_offset)


def _count(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or not int(text):
        raise Misused(f"--messages {text!r}: write a number from 1 on, or all")
    return int(text)


def _preview(admin: ParkedAdmin, lanes: Sequence[ParkedLaneView], most: int | None, what: str, as_json: bool) -> None:
    """What a command would touch, lane by lane: the first messages of each, in order."""
    found = []
    for lane in lanes:
        count = lane.messages if most is None else min(most, lane.messages)
        found.append((lane, count, admin.messages(lane, min(count, PREVIEWED))))
    parts: list[Grid | str] = []
    for lane, count, messages in found:
        more = f", the first {len(messages)} of them" if count > len(messages) else ""
        parts += [f"{sentence(lane)}: {plural(count, 'message')} {what}{more}", message_grid(messages)]
    show(
        as_json,
        lambda: {
            "dry_run": True,
            "lanes": [
                {**lane_document(lane), "affected": count, "first_messages": list(map(message_document, messages))}
                for lane, count, messages in found
            ],
        },
        *parts,
        "nothing was changed (--dry-run)",
    )


def _none_parked(group: str | None, topic: str | None, key: str | AnyKey | None = ANY_KEY) -> str:
    what = (
        "no lane" if isinstance(key, AnyKey) else "no lane without a key" if key is None else f"no lane of key {key!r}"
    )
    return f"{what}{f' of group {group}' if group else ''}{f' in topic {topic}' if topic else ''} is parked"
