"""The `lanemq` command: one group of commands per noun."""

import sys

import click

from lanemq.cli.broker import broker
from lanemq.model.errors import LaneError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lanemq")
def cli() -> None:
    """Ordered messaging: every key has its lane; nothing overtakes."""


cli.add_command(broker)


def main() -> None:
    """Runs the command; an error of ours is one line and exit code 1, never a traceback."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except LaneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
