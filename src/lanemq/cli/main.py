"""The `lanemq` command: one file per noun, gathered here.

A noun's module is imported when it is asked for, so that `lanemq --version` or `lanemq check` need not wait for a
broker's parts to load.
"""

from importlib import import_module

import click

from lanemq._fast import VARIANT
from lanemq.cli.options import Nouns

NOUNS = {
    "broker": "lanemq.cli.commands.broker",
    "topic": "lanemq.cli.commands.topic",
    "send": "lanemq.cli.commands.send",
    "tail": "lanemq.cli.commands.tail",
    "group": "lanemq.cli.commands.group",
    "locks": "lanemq.cli.commands.locks",
    "key": "lanemq.cli.commands.key",
    "why": "lanemq.cli.commands.why",
    "parked": "lanemq.cli.commands.parked",
    "pipeline": "lanemq.cli.pipeline.command",
    "check": "lanemq.cli.commands.check",
    "history": "lanemq.cli.commands.history",
}
"""Each in the module that defines a command of this name."""


class Menu(Nouns):
    """The nouns as click asks for them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        command: click.Command = getattr(import_module(NOUNS[cmd_name]), cmd_name)
        return command


@click.group(
    cls=Menu,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 refused or failed, 2 the command line is wrong (check: 2 is an unknown verdict).",
)
@click.version_option(package_name="lanemq", prog_name="lanemq", message=f"%(prog)s, version %(version)s ({VARIANT})")
def main() -> None:
    """Ordered messaging: every key has its lane; nothing overtakes.

    Every command except `broker`, `pipeline`, `check` and `history` asks the broker at --server HOST:PORT, or at
    the environment variable LANEMQ_SERVER.
    """


if __name__ == "__main__":
    main()
