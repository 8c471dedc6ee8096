"""`lanemq mirror`: copy topics to another broker or cluster, compare both sides, and move groups over."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from lanemq.cli.options import CliError, InOrder, duration, errors_name_flags, json_lines_option, json_option
from lanemq.cli.output import Grid, log_to_stderr, moving_line, plural, print_parts, show, to_json
from lanemq.cli.security import with_security_options
from lanemq.client.security import security_of_side
from lanemq.mirror.copying import Mirror, MirrorOptions, MirrorReport
from lanemq.mirror.cut_over import CutOver, DelayedChoice
from lanemq.mirror.cut_over import unseal as unseal_target
from lanemq.mirror.positions import Moved, groups_of, translate
from lanemq.mirror.queue_mapping import mapping_of
from lanemq.mirror.verifying import compare
from lanemq.signals import handled

if TYPE_CHECKING:
    from rich.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=InOrder)
def mirror() -> None:
    """Copy topics to another broker or cluster, in order, and move groups over.

    From a LaneMQ broker to an Apache RocketMQ cluster, or back. TLS and credential options apply to both sides. For
    sides that differ, set LANEMQ_FROM_TLS_CA, LANEMQ_TO_ACCESS_KEY and so on instead.
    """


def mirrors(command: F) -> F:
    """Adds the options that say what is copied; the command gets them as `MirrorOptions`."""

    @functools.wraps(command)
    def wrapped(*args: Any, source: str, target: str, topics: tuple[str, ...], name: str | None, **options: Any) -> Any:
        with errors_name_flags():
            skip = options.pop("skip_missing", False)
            chosen = MirrorOptions(
                source=source,
                target=target,
                topics=topics,
                name=name,
                skip_missing=skip,
                source_security=security_of_side("FROM"),
                target_security=security_of_side("TO"),
            )
            return command(*args, options=chosen, **options)

    for option in (
        click.option("--name", metavar="NAME", help="Name of the mirror. By default it follows from --from and --to."),
        click.option("--to", "target", required=True, metavar="HOST:PORT", help="Servers of the target."),
        click.option("--from", "source", required=True, metavar="HOST:PORT", help="Servers of the source."),
        click.argument("topics", nargs=-1, required=True, metavar="TOPIC..."),
    ):
        wrapped = option(wrapped)
    return cast(F, with_security_options(wrapped))


@mirror.command()
@mirrors
@click.option("--until-drained", is_flag=True, help="End when the target has everything.")
@click.option("--skip-missing", is_flag=True, help="Continue behind messages that the source deleted before.")
@click.option("--dry-run", is_flag=True, help="Only show what would be copied.")
@json_lines_option("report")
def run(options: MirrorOptions, until_drained: bool, dry_run: bool, as_json: bool) -> None:
    """Copy topics, continuously.

    May be stopped, killed and started again at any time: each message is stored once, in the order of its key.
    """
    if dry_run:
        _preview(options, as_json)
        return
    log_to_stderr("WARNING")
    with _progress(as_json) as tell:
        copier = Mirror(options, report=tell)
        # The first signal ends the mirror after the request under way.
        with handled(lambda *_: copier.stop()):
            last = copier.run(until_drained=until_drained)
    if not as_json:
        click.echo(f"{plural(last.copied, 'message')} copied, {last.left} left")


@mirror.command()
@mirrors
@json_option
def verify(options: MirrorOptions, as_json: bool) -> None:
    """Compare both sides, key by key.

    Exit code 1 if a message is missing, repeated, out of order or different, or not copied yet.
    """
    with moving_line("comparing both sides"):
        found = compare(options)
    show(
        as_json,
        lambda: {
            "equal": found.equal,
            "messages": found.messages,
            "keys": found.keys,
            "not_copied": found.not_copied,
            "not_copies": found.not_copies,
            "differences": found.differences,
        },
        f"{plural(found.messages, 'message')} of {plural(found.keys, 'key')} compared",
        *([f"{plural(found.not_copied, 'message')} not copied yet"] if found.not_copied else []),
        *([f"{plural(found.not_copies, 'message')} at the target not from this mirror"] if found.not_copies else []),
        *found.differences,
        *(["both sides are equal"] if found.equal else []),
    )
    if not found.equal:
        raise SystemExit(1)


@mirror.command()
@mirrors
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group; may be repeated.")
@click.option("--online", is_flag=True, help="Allow members at the source; what they still finish is delivered again.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@json_option
def positions(options: MirrorOptions, groups: tuple[str, ...], online: bool, dry_run: bool, as_json: bool) -> None:
    """Move groups at the target to where they are at the source.

    No message is skipped. If the numbers of queues differ, some finished messages are delivered again, in order.
    """
    moved = translate(options, groups, dry_run=dry_run, online=online)
    show(
        as_json,
        lambda: {"dry_run": dry_run, "positions": [_position(each) for each in moved]},
        Grid(
            ("group", "topic", "broker", "queue", "offset", "new offset", "left"),
            [
                (
                    each.group,
                    each.queue.topic,
                    each.queue.broker,
                    each.queue.queue_id,
                    each.before,
                    each.after,
                    each.left,
                )
                for each in moved
            ],
            "no group has offsets in these topics",
        ),
        *(["nothing was changed (--dry-run)"] if dry_run else []),
    )


@mirror.command("cut-over")
@mirrors
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group; may be repeated.")
@click.option("--seal", is_flag=True, help="Make the source refuse sends to the topics.")
@click.option("--quiet", type=duration, default="5s", show_default=True, help="Without --seal: time without a message.")
@click.option(
    "--delayed",
    type=click.Choice(["refuse", "wait", "leave"]),
    default="refuse",
    show_default=True,
    help="If delayed messages or retries are not due yet: fail, wait for them, or leave them at the source.",
)
@click.option("--undo", is_flag=True, help="Only make the source take messages again, if nothing was switched yet.")
@click.option("--force", is_flag=True, help="With --undo: even if the target has messages of its own.")
@json_lines_option("step")
def cut_over(
    options: MirrorOptions,
    groups: tuple[str, ...],
    seal: bool,
    quiet: float,
    delayed: DelayedChoice,
    undo: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Do the last steps before producers and consumers are switched to the target.

    Steps: producers stopped, no message delayed, everything copied, both sides equal, groups moved. Stop `mirror run`
    and the consumers first. Exit code 0 if all steps passed; then start consumers and producers at the target.
    """
    moving = CutOver(options, groups, seal=seal, quiet=quiet, delayed=delayed)
    if undo:
        moving.undo(force=force)
        click.echo("the source takes messages again")
        return
    passed = False
    for step in moving.steps():
        passed = step.passed
        if as_json:
            click.echo(to_json({"step": step.name, "passed": step.passed, "text": step.text}))
        else:
            click.echo(f"{'ok    ' if step.passed else 'failed'}  {step.name}: {step.text}")
    if not passed:
        raise CliError("the cut-over is not complete: do not switch producers and consumers yet")
    if not as_json:
        click.echo(f"switch: start consumers, then producers, with --server '{options.target}'")


@mirror.command()
@mirrors
def unseal(options: MirrorOptions) -> None:
    """Let the target take messages again, for the way back.

    A cut-over with --seal leaves its source sealed. To go back, exchange --from and --to, and run this before `mirror
    run`. The topic then takes messages from every program: none may still have the old address.
    """
    unseal_target(options)
    click.echo("the target takes messages again: no program may send to it before the cut-over back")


def _preview(options: MirrorOptions, as_json: bool) -> None:
    rows: list[dict[str, object]] = []
    with options.open_source() as source, options.open_target() as target:
        for topic in options.topics:
            here, there = source.route(topic), target.route(topic)
            mapping = mapping_of(here, there)
            bounds = [source.bounds(queue) for queue in here.subscribe]
            rows.append(
                {
                    "topic": topic,
                    "messages": sum(end - first for first, end in bounds),
                    "source_queues": mapping.counts[0],
                    "target_queues": mapping.counts[1],
                    "placed": "by queue" if mapping.same else "by key",
                    "ordered": (here.ordered, there.ordered),
                    "groups": sorted(groups_of(source, topic, (source.group, target.group))),
                }
            )
    lost = [each["topic"] for each in rows if each["ordered"] == (True, False)]
    show(
        as_json,
        lambda: {"dry_run": True, "mirror": options.mirror, "topics": rows},
        f"mirror {options.mirror}: {options.source} → {options.target}",
        Grid(
            ("topic", "messages", "queues", "queues there", "placed", "ordered", "groups"),
            [
                (
                    each["topic"], each["messages"], each["source_queues"], each["target_queues"], each["placed"],
                    each["ordered"] == (True, True), ", ".join(cast(list[str], each["groups"])),
                )
                for each in rows
            ],
        ),
        *(f"topic {topic} is not ordered at the target: create it there with --ordered" for topic in lost),
        "nothing was copied (--dry-run)",
    )  # fmt: skip


def _position(each: Moved) -> dict[str, object]:
    return {
        "group": each.group,
        "topic": each.queue.topic,
        "broker": each.queue.broker,
        "queue": each.queue.queue_id,
        "before": each.before,
        "after": each.after,
        "left": each.left,
    }


@contextlib.contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[MirrorReport], None]]:
    """Shows reports: a line of JSON each, a progress bar on a terminal, or else a line when something changes."""
    if as_json:
        yield lambda report: click.echo(
            to_json({"copied": report.copied, "left": report.left, "sessions": report.sessions, "error": report.error})
        )
    elif sys.stderr.isatty():
        with _bar() as bar:
            task = bar.add_task("", total=None, note="")

            def tell(report: MirrorReport) -> None:
                total = report.copied + report.left if report.left >= 0 else None
                bar.update(task, completed=report.copied, total=total, note=report.error)

            yield tell
    else:
        last = [-1]

        def say(report: MirrorReport) -> None:
            if report.copied != last[0] and not report.error:
                last[0] = report.copied
                print_parts(f"{report.copied} copied, {report.left} left", err=True)

        yield say


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
    )
