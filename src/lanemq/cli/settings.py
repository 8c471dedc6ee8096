"""Options of a command from a file, the environment or the command line.

    --config lanemq.toml     a table of the file, named after the command; keys are the options without dashes in front
    LANEMQ_BROKER_LISTEN     the option in capitals, after the command's prefix
    --listen                 wins over both

Invariant: no setting is ignored silently. An unknown key of the file or variable with the prefix is refused, with the
nearest name that exists.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from lanemq.cli.options import WrongUsage

F = TypeVar("F", bound=Callable[..., Any])

FILE = "lanemq.settings_file"
"""Where click's context holds the path of `--config`."""

_SOURCES = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}


class SettingsCommand(click.Command):
    """A command with `--config`, whose name is that of its table in the file.

    A value that it does not take is reported with the place where it was given.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            name = None if error.param is None else error.param.name
            source = None if name is None else ctx.get_parameter_source(name)
            if source is ParameterSource.DEFAULT_MAP:
                place = f"in the file {ctx.meta.get(FILE)}"
            elif source is ParameterSource.ENVIRONMENT:
                place = f"in the environment, as {_variable(ctx.command, str(name))}"
            else:
                raise
            text = f"{error.message.rstrip('.')}. It is {place}."
            raise click.BadParameter(text, error.ctx, error.param, error.param_hint) from error


def config_option(name: str) -> Callable[[F], F]:
    """Adds `--config` to the command of this name. Use it with `SettingsCommand` and `settings_from(name)`."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_load,
        metavar="FILE",
        help=f"TOML file with a table [{name}] of these options. Flags and {_prefix(name)}_* win over it.",
    )


def settings_from(name: str) -> dict[str, object]:
    """The settings of the command's context with which its options may come from the environment."""
    return {"auto_envvar_prefix": _prefix(name)}


def _prefix(name: str) -> str:
    return f"LANEMQ_{name.upper()}"


def _load(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    command = context.command
    known = option_names(command)
    variables = [name for name in os.environ if name.startswith(_variable(command, ""))]
    allowed = [_variable(command, name) for name in (*known, "config")]
    _refuse_unknown(command, variables, allowed, "the environment")
    for name in variables:
        if not os.environ[name]:  # click would take the default, for example no access control
            raise WrongUsage(f"the environment: {name} is empty; give it a value, or remove it")
    if path is not None:
        context.meta[FILE] = str(path)
        context.default_map = read_settings(path, command)


def option_names(command: click.Command) -> list[str]:
    """The options of a command that a file may set."""
    left_out = ("config", "help")
    return [each.name for each in command.params if each.name is not None and each.name not in left_out]


def flag_names(command: click.Command) -> list[str]:
    """The options of a command that are true or false."""
    return [each.name for each in command.params if each.name and isinstance(each, click.Option) and each.is_flag]


def _variable(command: click.Command, option: str) -> str:
    """The environment variable of an option."""
    return f"{_prefix(str(command.name))}_{option.upper()}"


def read_settings(path: Path, command: click.Command) -> dict[str, object]:
    """The command's table of a file; keys may be written with dashes or underscores."""
    name_of_table, flags = str(command.name), flag_names(command)
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise WrongUsage(f"--config {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise WrongUsage(f"--config {path} is not valid TOML: {error}") from error
    _refuse_unknown(command, tables, [name_of_table], str(path), f"a table [{name_of_table}]")
    table = tables.get(name_of_table, {})
    if not isinstance(table, dict):
        raise WrongUsage(f"--config {path}: {name_of_table} must be a table: begin it with [{name_of_table}]")
    found: dict[str, object] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in found:
            raise WrongUsage(f"--config {path}: {key} is given twice, with a dash and with an underscore; keep one")
        found[name] = value
    _refuse_unknown(command, found, option_names(command), f"{path} [{name_of_table}]")
    for key, value in found.items():
        if not isinstance(value, str | int | float | bool):
            raise WrongUsage(f"--config {path}: {key} must be text, a number, true or false")
        if value == "":  # an empty path would be the current folder
            raise WrongUsage(f"--config {path}: {key} is empty; give it a value, or remove it")
        if isinstance(value, bool) and key not in flags:
            raise WrongUsage(
                f"--config {path}: {key} must be a value, not {str(value).lower()}; see lanemq {command.name} --help"
            )
    return {key: value if isinstance(value, bool) else str(value) for key, value in found.items()}


def _refuse_unknown(
    command: click.Command, names: Iterable[str], known: list[str], where: str, expected: str = "an option"
) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"see lanemq {command.name} --help"
            raise WrongUsage(f"{where}: {name} is not {expected}; {hint}")


class Setting(NamedTuple):
    """One option, its value, and where the value came from."""

    option: str
    value: object
    source: str
    variable: str


def origins_of(context: click.Context) -> dict[str, str]:
    """Where each option that was set came from, in words: `command line`, `file lanemq.toml`, `environment NAME`."""
    words = {"environment": "environment {variable}", "file": "file {file}"}
    return {
        each.option: words.get(each.source, each.source).format(variable=each.variable, file=context.meta.get(FILE))
        for each in settings_of(context)
        if each.source != "default"
    }


def settings_of(context: click.Context) -> list[Setting]:
    """Every option of a command that was read, in the order of its help."""
    found = []
    for parameter in context.command.params:
        name = parameter.name
        if name is None or name not in context.params:
            continue
        source = context.get_parameter_source(name)
        where = _SOURCES.get(source, "default") if source is not None else "default"
        found.append(Setting(name, context.params[name], where, _variable(context.command, name)))
    return found
