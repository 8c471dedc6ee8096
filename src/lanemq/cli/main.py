"""The `lanemq` command: one file per noun, gathered here."""

import click

from lanemq.checker.command import check
from lanemq.cli.broker import broker
from lanemq.cli.group import group
from lanemq.cli.key import key
from lanemq.cli.locks import locks
from lanemq.cli.options import Nouns
from lanemq.cli.send import send
from lanemq.cli.tail import tail
from lanemq.cli.topic import topic


@click.group(
    cls=Nouns,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 refused or failed, 2 the command line is wrong (check: 2 is an unknown verdict).",
)
@click.version_option(package_name="lanemq", prog_name="lanemq")
def main() -> None:
    """Ordered messaging: every key has its lane; nothing overtakes.

    Every command except `broker` and `check` asks the broker at --server HOST:PORT, or at the environment
    variable LANEMQ_SERVER.
    """


for command in (broker, topic, send, tail, group, locks, key, check):
    main.add_command(command)


if __name__ == "__main__":
    main()
