"""`lanemq config show`: the settings that a broker would run with, and where each came from."""

import click

from lanemq.cli.options import InOrder, json_option
from lanemq.cli.output import Grid, show
from lanemq.cli.server.broker import broker
from lanemq.cli.settings import settings_of


@click.group(cls=InOrder)
def config() -> None:
    """Show the settings of a broker."""


@config.command("show", context_settings={"ignore_unknown_options": True})
@json_option
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[BROKER OPTIONS]...")
def show_config(flags: tuple[str, ...], as_json: bool) -> None:
    """Show what `lanemq broker` with the same flags would use, and where each value came from.

    Reads the file of --config and the environment as the broker does. Nothing is started.
    """
    context = broker.make_context("broker", list(flags))
    found = settings_of(context)
    rows = [(each.option.replace("_", "-"), each.value, each.source, each.variable) for each in found]
    show(
        as_json,
        lambda: {each.option: {"value": _plain(each.value), "source": each.source} for each in found},
        Grid(("option", "value", "from", "variable"), rows),
    )


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
