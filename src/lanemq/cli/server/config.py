"""`lanemq config show`: the settings that a broker would run with, and where each came from."""

import copy
from collections.abc import Sequence

import click

from lanemq.cli.options import InOrder, json_option
from lanemq.cli.output import Grid, show, size_text
from lanemq.cli.server.broker import broker, check_settings
from lanemq.cli.settings import Setting, settings_of

ZERO_MEANS = {
    "retention_bytes": "three quarters of the disk",
    "min_free_bytes": "sends are refused only when the disk is full",
}
"""What 0 stands for, where it is not a number."""


@click.group(cls=InOrder)
def config() -> None:
    """Show the settings of a broker."""


@config.command("show", context_settings={"ignore_unknown_options": True})
@json_option
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[BROKER OPTIONS]...")
def show_config(flags: tuple[str, ...], as_json: bool) -> None:
    """Show what `lanemq broker` with the same flags would use, and where each value came from.

    Reads the file of --config and the environment as the broker does. Nothing is started, and --data is not needed.
    Exit code 2 if the broker would refuse a value.
    """
    context = broker_context(flags)
    found = settings_of(context)
    rows = [(each.option.replace("_", "-"), _text(each), each.source, each.variable) for each in found]
    show(
        as_json,
        lambda: {each.option: {"value": _plain(each.value), "source": each.source} for each in found},
        Grid(("option", "value", "from", "variable"), rows),
    )
    check_settings(context.params)


def broker_context(flags: Sequence[str]) -> click.Context:
    """What `lanemq broker` with these flags would use, also without --data. Reads the environment as well."""
    return _without_data().make_context(click.get_current_context().command_path, list(flags))


def _without_data() -> click.Command:
    """The broker's command, except that --data may be missing."""
    command = copy.copy(broker)
    command.params = [_optional(each) if each.name == "data" else each for each in broker.params]
    return command


def _optional(parameter: click.Parameter) -> click.Parameter:
    changed = copy.copy(parameter)
    changed.required = False
    return changed


def _text(setting: Setting) -> object:
    """The value with its unit, and what 0 stands for."""
    name, value = setting.option, setting.value
    if value is None:
        return {"data": "not given; the broker needs it", "audit": "audit.log in the data folder"}.get(name)
    if value == 0 and name in ZERO_MEANS:
        return f"0: {ZERO_MEANS[name]}"
    if isinstance(value, float):
        return _span(value)
    if name.endswith("_bytes") and isinstance(value, int) and value >= 1024:
        return f"{value} ({size_text(value)})"
    return value


def _span(seconds: float) -> str:
    """A duration as the options take it: `72h`, `90s`."""
    for unit, size, least in (("d", 86400, 7), ("h", 3600, 2), ("m", 60, 2)):
        if seconds >= least * size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.12g}s"


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
