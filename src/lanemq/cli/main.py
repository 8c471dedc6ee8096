"""The `lanemq` command. Each subcommand is one module, imported only when it is used.

So `lanemq --version` or `lanemq check` does not load the broker.
"""

from importlib import import_module

import click

from lanemq._fast import VARIANT
from lanemq.cli.options import CommandGroup

COMMANDS = {
    "broker": "lanemq.cli.commands.broker",
    "status": "lanemq.cli.commands.status",
    "topic": "lanemq.cli.commands.topic",
    "send": "lanemq.cli.commands.send",
    "tail": "lanemq.cli.commands.tail",
    "group": "lanemq.cli.commands.group",
    "locks": "lanemq.cli.commands.locks",
    "key": "lanemq.cli.commands.key",
    "why": "lanemq.cli.commands.key",
    "parked": "lanemq.cli.commands.parked",
    "pipeline": "lanemq.cli.pipeline.command",
    "mirror": "lanemq.cli.commands.mirror",
    "check": "lanemq.cli.commands.check",
    "history": "lanemq.cli.commands.history",
}
"""The module that defines each command, under the command's name."""


class LazyCommands(CommandGroup):
    """Imports the module of a command when click asks for the command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 refused or failed, 2 wrong command line (`check`: 2 means that the verdict is "
    "unknown). Durations are seconds, or a number with a unit: 90s, 10m, 72h, 3d.",
)
@click.version_option(package_name="lanemq", prog_name="lanemq", message=f"%(prog)s, version %(version)s ({VARIANT})")
def main() -> None:
    """LaneMQ: messages with the same key are stored, delivered and processed in order.

    Every command except `broker`, `pipeline`, `mirror`, `check` and `history` connects to the broker given by --server
    HOST:PORT or by the environment variable LANEMQ_SERVER.
    """


if __name__ == "__main__":
    main()
