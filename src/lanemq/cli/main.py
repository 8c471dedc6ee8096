"""The `lanemq` command. Each subcommand is one module, imported only when it is used.

So `lanemq --version` or `lanemq check` does not load the broker, and `lanemq --help` loads no subcommand at all.
"""

import contextlib
import sys
from collections.abc import Sequence
from importlib import import_module
from traceback import walk_tb
from typing import Any, NamedTuple

import click

from lanemq._fast import VARIANT
from lanemq.cli.options import CommandGroup
from lanemq.cli.output import failure_of
from lanemq.signals import end_with_parent


class LazyCommand(NamedTuple):
    """Where a command is, and its line in the list of commands."""

    module: str
    help: str


COMMANDS = {
    "broker": LazyCommand("lanemq.cli.server.broker", "Run a broker, which is its own name server, on one port."),
    "coordinator": LazyCommand(
        "lanemq.cli.server.coordinator", "Run a coordinator of groups beside an Apache RocketMQ cluster."
    ),
    "grpc": LazyCommand(
        "lanemq.cli.server.front", "Serve RocketMQ 5's gRPC clients: Java, Python, Go, Node and others."
    ),
    "config": LazyCommand("lanemq.cli.server.config", "Show the settings of a broker."),
    "status": LazyCommand(
        "lanemq.cli.commands.status",
        "Show on one screen whether the brokers are healthy, and how far every group is behind.",
    ),
    "top": LazyCommand("lanemq.cli.commands.top", "Show the health of the brokers and the lag of the groups, live."),
    "run": LazyCommand("lanemq.cli.commands.run", "Run the handlers of an App, in one process or in several."),
    "topic": LazyCommand("lanemq.cli.commands.topic", "Create, list, describe, order and delete topics."),
    "send": LazyCommand("lanemq.cli.commands.send", "Send VALUE, or each line of a file, to TOPIC."),
    "tail": LazyCommand("lanemq.cli.commands.tail", "Show messages of TOPIC: time, queue@offset, key, [tag], value."),
    "group": LazyCommand(
        "lanemq.cli.commands.group", "List, describe and delete consumer groups, and reset their offsets."
    ),
    "locks": LazyCommand("lanemq.cli.commands.locks", "Show which member owns which queue."),
    "key": LazyCommand("lanemq.cli.commands.key", "Show the messages of KEY, and each group's progress with it."),
    "why": LazyCommand("lanemq.cli.commands.key", "Say in one sentence what KEY waits for, for each group."),
    "parked": LazyCommand("lanemq.cli.commands.parked", "List, show, redrive and discard parked lanes."),
    "dead": LazyCommand("lanemq.cli.commands.dead", "List, show, redrive and discard the dead letters of groups."),
    "pipeline": LazyCommand(
        "lanemq.cli.pipeline.command", "Run and inspect pipelines, which a .toml or .py file declares."
    ),
    "spark": LazyCommand("lanemq.cli.commands.spark", "Prepare what a Spark cluster needs to run pipelines."),
    "mirror": LazyCommand(
        "lanemq.cli.commands.mirror", "Copy topics to another broker or cluster, in order, and move groups over."
    ),
    "backup": LazyCommand(
        "lanemq.cli.server.backup", "Copy the data folder of a broker or a coordinator to FOLDER, also while it runs."
    ),
    "restore": LazyCommand("lanemq.cli.server.backup", "Make a data folder from the backup in FOLDER."),
    "migrate": LazyCommand(
        "lanemq.cli.server.coordinator_state", "Move the state of a stopped coordinator from its folder to PostgreSQL."
    ),
    "doctor": LazyCommand(
        "lanemq.cli.server.doctor",
        "Examine a data folder and this machine, or a coordinator's database, and say what to do.",
    ),
    "check": LazyCommand("lanemq.cli.commands.check", "Check the order of a recorded run."),
    "console": LazyCommand(
        "lanemq.cli.server.console", "Serve the console: pages about topics, keys, groups, and everything that waits."
    ),
    "up": LazyCommand("lanemq.cli.server.up", "Run a broker and its console."),
}
"""The commands in the order of the help. A test compares each line with the command's own help."""


_LISTS = "Topics: 'lanemq topic list'. Groups: 'lanemq group list'."
_READS = "To look at messages: 'lanemq tail'. To run handlers: 'lanemq run'."
_STARTS = "A broker: 'lanemq broker --data DIR'. A broker and its console: 'lanemq up'."
ELSEWHERE = {
    **{
        command: f"Parked lanes: 'lanemq parked {command}'. Dead letters: 'lanemq dead {command}'."
        for command in ("redrive", "discard")
    },
    **dict.fromkeys(("list", "ls"), _LISTS),
    **dict.fromkeys(("consume", "consumer", "read", "subscribe"), _READS),
    **dict.fromkeys(("start", "serve", "server"), _STARTS),
    **dict.fromkeys(("produce", "producer", "publish"), "Did you mean 'send'?"),
    **dict.fromkeys(("dlq", "dead-letter", "dead-letters"), "Did you mean 'dead'?"),
    "create": "Did you mean 'topic create'?",
    "delete": "Topics: 'lanemq topic delete'. Groups: 'lanemq group delete'.",
    "reset": "Did you mean 'group reset'?",
    "lag": "Did you mean 'status'?",
    "version": "Did you mean '--version'?",
}
"""What people look for at the top: commands of groups, and words of other systems."""


class LazyCommands(CommandGroup):
    """Imports the module of a command when click asks for the command."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **options: Any
    ) -> Any:
        """As click does; output that cannot be written ends in one line on stderr and exit code 1, not in a traceback.

        If the reader of a pipe has ended (`lanemq topic list | head`), there is no line.
        """
        code: Any = 0
        try:
            ended = super().main(args, prog_name, **options)
            if not options.get("standalone_mode", True):
                return ended
        except SystemExit as end:
            code = end.code
        except OSError as error:
            failed = failure_of(sys.stdout) or failure_of(sys.stderr) or (error if _is_of_echo(error) else None)
            if failed is None:
                raise
            sys.exit(_not_written(failed))
        failed = failure_of(sys.stdout)
        sys.exit(_not_written(failed) if failed is not None and not code else code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "help":
            return show_help
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name].module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; for a wrong name it suggests the nearest one, which click does not for lazy commands."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib  # only mistakes need it

            if args[0] in ELSEWHERE:
                raise click.UsageError(f"No such command {args[0]!r}. {ELSEWHERE[args[0]]}", ctx) from None
            near = difflib.get_close_matches(args[0].lower(), COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.help) for name, each in COMMANDS.items()])


def _is_of_echo(error: OSError) -> bool:
    """Whether printing raised it; the stream may have nothing left that would fail again."""
    return any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _not_written(error: OSError) -> int:
    """Says why the output cannot be written, if there is a place for it; returns the exit code."""
    if not isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):
            click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        failure_of(sys.stderr)
    return 1


@click.command("help", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1)
@click.pass_context
def show_help(context: click.Context, words: tuple[str, ...]) -> None:
    """`lanemq help topic create` prints what `lanemq topic create --help` prints."""
    assert context.parent is not None
    main.main([*words, "--help"], prog_name=context.parent.info_name)


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 refused or failed, 2 wrong command line (`check`: 2 means that the verdict is "
    "unknown). Durations are seconds, or a number with a unit: 90s, 10m, 72h, 3d.",
)
@click.version_option(package_name="lanemq", prog_name="lanemq", message=f"%(prog)s, version %(version)s ({VARIANT})")
def main() -> None:
    """LaneMQ: messages with the same key are stored, delivered and processed in order.

    Commands that ask a broker take its address from --server HOST:PORT, from the environment variable
    LANEMQ_SERVER.
    `broker`, `backup`, `restore`, `migrate` and `doctor` work on a data folder of this machine.
    """
    end_with_parent()


if __name__ == "__main__":
    main()
