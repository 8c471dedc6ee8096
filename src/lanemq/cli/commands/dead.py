"""`lanemq dead`: lists, shows, redrives and discards the dead letters of a group.

The dead letters of a pipeline are in its checkpoint: `lanemq pipeline dead-letters`.
"""

import time
from dataclasses import replace

import click

from lanemq.cli.options import YES, InOrder, asks_server, confirm
from lanemq.cli.output import Grid, body_for_json, cell, plural, progress, show, time_text
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.dead_letters import (
    GroupDeadLetter,
    check_topic_is_known,
    count_dead_letters,
    discard_dead_letters,
    last_of_each_queue,
    open_dead_letters,
    read_dead_letter,
    read_dead_letters,
    send_again,
    was_redriven,
    with_states,
)

LATE = "a redriven message comes late, after everything that its key has by then"
MAX_LISTED = 100

GROUP = click.option("--group", required=True, help="Group that gave the messages up.")


@click.group(cls=InOrder)
def dead() -> None:
    """List, show, redrive and discard the dead letters of groups.

    A dead letter is a message that a group gave up: its retries were used up, or its handler decided so. Its key
    continued without it. Dead letters of a pipeline: lanemq pipeline dead-letters.
    """


@dead.command("list")
@click.option("--group", help="Only this group; by default a line for each group.")
@click.option("--key", help="Only dead letters of this key.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=MAX_LISTED,
    show_default=True,
    metavar="N",
    help="List at most this many.",
)
@asks_server
def list_dead(group: str | None, key: str | None, limit: int, server: str, as_json: bool) -> None:
    """List dead letters, oldest first."""
    if group is None:
        if key is not None:
            raise click.UsageError("--key needs --group")
        _list_groups(server, as_json)
        return
    found = [letter for letter in read_dead_letters(server, group) if key is None or letter.key == key]
    with Admin(server) as admin:
        shown = with_states(admin, found[:limit])
    rows = [
        (letter.id, letter.topic, letter.key, letter.state, letter.attempts, letter.since, letter.why)
        for letter in shown
    ]
    show(
        as_json,
        lambda: list(map(_document, shown)),
        Grid(
            ("id", "topic", "key", "state", "attempts", "since", "reason"), rows, f"group {group} has no dead letters"
        ),
        *([f"and {len(found) - limit} more; see --limit"] if len(found) > limit else []),
    )


def _list_groups(server: str, as_json: bool) -> None:
    with Admin(server) as admin:
        counts = {group: count for group, count in sorted(count_dead_letters(admin).items()) if count}
    show(
        as_json,
        lambda: [{"group": group, "dead_letters": count} for group, count in counts.items()],
        Grid(("group", "dead letters"), list(counts.items()), "no group has dead letters"),
    )


@dead.command("show")
@click.argument("id")
@GROUP
@asks_server
def show_dead(id: str, group: str, server: str, as_json: bool) -> None:
    """Show the dead letter ID with its body, properties and reason."""
    with Admin(server) as admin:
        (letter,) = with_states(admin, [read_dead_letter(server, group, id)])
    message = letter.message
    show(
        as_json,
        lambda: _document(letter) | {"properties": dict(message.properties), "value": body_for_json(message.body)},
        f"dead letter {id} of group {group}: topic {letter.topic}, key {cell(letter.key)}, {letter.state}",
        f"given up {time_text(letter.since)} after {plural(letter.attempts, 'attempt')}: {cell(letter.why)}",
        Grid(("property", "value"), list(message.properties.items())),
        cell(message.body),
    )


@dead.command()
@click.argument("id", required=False)
@GROUP
@click.option("--key", help="Every dead letter of this key that was not redriven.")
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the group that was not redriven.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Messages per second; no limit.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@YES
@asks_server
def redrive(
    id: str | None,
    group: str,
    key: str | None,
    everything: bool,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Send the dead letter ID to its topic again.

    Its key continued without it, so it comes late: after everything that the key has by then. All groups that read the
    topic get it. The dead letter itself is kept, and is not redriven again by --key and --all.
    """
    if (id is not None) + (key is not None) + everything != 1:
        raise click.UsageError("give exactly one of ID, --key KEY and --all")
    chosen = _chosen(server, group, id, key)
    topics = sorted({each.topic for each in chosen})
    if chosen and not dry_run:
        with Admin(server) as admin:
            readers = sorted({name for topic in topics for name in _readers(admin, topic)} - {group})
        others = f"; also {', '.join(readers)} will get them again" if readers else ""
        confirm(yes, f"{plural(len(chosen), 'dead letter')} will be sent to {', '.join(topics)} again{others}. {LATE}")
        _send(server, chosen, rate)
    would = "would be sent" if dry_run else "sent"
    show(
        as_json,
        lambda: {"dry_run": dry_run, "redriven": [_document(replace(letter, redriven=True)) for letter in chosen]},
        f"{plural(len(chosen), 'dead letter')} {would} to {', '.join(topics)} again; {LATE}"
        if chosen
        else f"nothing to do: group {group} has no dead letters that were not redriven",
        *(["nothing was changed (--dry-run)"] if dry_run else []),
    )


@dead.command()
@click.argument("id", required=False)
@GROUP
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the group.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@YES
@asks_server
def discard(id: str | None, group: str, everything: bool, dry_run: bool, yes: bool, server: str, as_json: bool) -> None:
    """Discard the dead letter ID and the older ones before it.

    Discarded dead letters are not listed, counted or redriven any more. Those that arrive while you decide stay.
    """
    if (id is not None) == everything:
        raise click.UsageError("give either ID or --all")
    listed = list(read_dead_letters(server, group))
    if id is not None:
        last = read_dead_letter(server, group, id).message
        listed = [
            each
            for each in listed
            if each.message.queue == last.queue and each.message.queue_offset <= last.queue_offset
        ]
    with Admin(server) as admin:
        unused = 0 if yes or dry_run else sum(not was_redriven(admin, each) for each in listed)
        if listed and not dry_run:
            confirm(
                yes,
                f"{plural(len(listed), 'dead letter')} of group {group} will be discarded, {unused} of them without "
                f"having been redriven",
                Grid(("id", "topic", "key", "since", "reason"), [_short(each) for each in listed[:MAX_LISTED]]),
            )
            discard_dead_letters(admin, group, last_of_each_queue(listed))
    would = "would be discarded" if dry_run else "discarded"
    show(
        as_json,
        lambda: {"dry_run": dry_run, "discarded": [each.id for each in listed]},
        f"{plural(len(listed), 'dead letter')} of group {group} {would}" if listed else "nothing to do",
        *(["nothing was changed (--dry-run)"] if dry_run else []),
    )


def _short(letter: GroupDeadLetter) -> tuple[object, ...]:
    return letter.id, letter.topic, letter.key, letter.since, letter.why


def _chosen(server: str, group: str, id: str | None, key: str | None) -> list[GroupDeadLetter]:
    """The dead letters to redrive; one that is named by its id also if it was redriven before."""
    if id is not None:
        named = read_dead_letter(server, group, id)
        check_topic_is_known(named)
        return [named]
    letters = [each for each in read_dead_letters(server, group) if key is None or each.key == key]
    with Admin(server) as admin:
        return open_dead_letters(admin, letters)


def _readers(admin: Admin, topic: str) -> list[str]:
    """The groups that have offsets in a topic."""
    return [
        name for name in admin.groups() if any(each.queue.topic == topic for each in admin.describe_group(name).queues)
    ]


def _send(server: str, letters: list[GroupDeadLetter], rate: float | None) -> None:
    from lanemq.client.producer.producer import Producer  # only a redrive sends

    with Producer(server, codec="bytes") as producer:
        for each in progress(letters, "redriving"):
            send_again(producer, each)
            if rate:
                time.sleep(1 / rate)


def _document(letter: GroupDeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "group": letter.group,
        "topic": letter.topic,
        "key": letter.key,
        "tag": letter.message.tag,
        "message_id": letter.message.message_id,
        "state": letter.state,
        "attempts": letter.attempts,
        "since": letter.since,
        "reason": letter.why,
    }
