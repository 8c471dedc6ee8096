"""Finds the pipeline that a command means: FILE or CHECKPOINT, with TLS and credential flags applied.

A source prefers its own options to the environment, so the flags replace options of the source; a topic sink without
options of its own takes them from the environment. The command line overrides the file option by option, but
credentials only as a whole: a user name from the command line is never combined with a secret from the file.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from lanemq.cli.options import CliError, errors_name_flags
from lanemq.cli.security import with_security_options
from lanemq.files import is_address
from lanemq.model import environment
from lanemq.model.errors import UsageError

if TYPE_CHECKING:
    from lanemq.pipelines.operate.dead_letters import DeadLetters
    from lanemq.pipelines.operate.parked import ParkedLanes
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.pipelines.source import Topic

F = TypeVar("F", bound=Callable[..., Any])

FILE_OR_CHECKPOINT = click.argument("place", metavar="FILE|CHECKPOINT", type=str)
NAME = click.option("--name", help="Name of the pipeline, if FILE declares several.")

APPLIED_LATER = "the running pipeline applies decisions within a second, otherwise its next start does"

_TLS: Final = {
    "tls_ca": ("tls.ca", environment.TLS_CA),
    "tls_cert": ("tls.cert", environment.TLS_CERT),
    "tls_key": ("tls.key", environment.TLS_KEY),
    "tls_verify": ("tls.verify", environment.TLS_VERIFY),
}
"""By flag: the source's option and the environment variable."""
_FILES: Final = ("tls_ca", "tls_cert", "tls_key", "secret_key_file")
_CREDENTIALS: Final = ("accesskey", "secretkey", "secretkeyfile", "securitytoken")


def pipeline_security_options(command: F) -> F:
    """Adds the TLS and credential flags. A command that loads a pipeline applies them with `secured`."""

    @functools.wraps(command)
    def protected(*args: Any, **options: Any) -> Any:
        with errors_name_flags():
            return command(*args, **options)

    return cast(F, with_security_options(protected))


def declared_at(place: str, name: str | None) -> "Pipeline | None":
    """The pipeline that the file declares; None if `place` is a checkpoint folder or its address."""
    path = Path(place)
    if is_address(place) or path.is_dir():
        return None
    if not path.exists():
        what = "give a .toml or .py file that declares a pipeline, or its checkpoint"
        raise UsageError(f"{place}: there is no such file or folder; {what}")
    from lanemq.pipelines.declare.files import load

    return load(path, name, with_flags)


def parked_lanes_at(place: str, name: str | None) -> "ParkedLanes":
    """The held and parked keys in the pipeline's checkpoint."""
    from lanemq.pipelines.operate.parked import parked

    with refused():
        return parked(declared_at(place, name) or place)


def dead_letters_at(place: str, name: str | None) -> "DeadLetters":
    """The dead letters of the pipeline."""
    from lanemq.pipelines.operate.dead_letters import dead_letters

    with refused():
        return dead_letters(declared_at(place, name) or place)


@contextmanager
def refused() -> Iterator[None]:
    """Turns a `UsageError` into exit code 1: something missing in a checkpoint is not a wrong command line."""
    try:
        yield
    except UsageError as error:
        raise CliError(str(error)) from error


def secured(source: "Topic") -> "Topic":
    """The source with the flags of the current command applied."""
    options = with_flags(source.options)
    return source if options == source.options else type(source)(**options)


def with_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a source, overridden by the flags of the current command."""
    given = {name: _value(name, value) for name, value in click.get_current_context().params.items() if value}
    return _with_credentials(_with_tls(dict(options), given), given)


def _value(name: str, value: object) -> str:
    """Files as absolute paths, because the query may be planned and run in another folder."""
    return str(Path(str(value)).absolute()) if name in _FILES else str(value)


def _with_tls(options: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """If the source has no TLS options, flags that are not given come from the environment, as in other commands."""
    chosen = {_TLS[name][0]: given[name] for name in _TLS if name in given}
    if not chosen and "tls" not in given:
        return options
    own = {name: value for name, value in options.items() if name.lower().split(".")[0] == "tls"}
    rest = {name: value for name, value in options.items() if name not in own}
    known = {name.lower(): value for name, value in own.items() if name.lower() != "tls"}
    if not own:
        known = {option: os.environ[name] for option, name in _TLS.values() if os.environ.get(name)}
    return {**rest, "tls": "true", **known, **chosen}


def _with_credentials(options: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Setting any credential flag replaces all credentials from the file."""
    if "access_key" not in given and "secret_key_file" not in given:
        return options
    chosen = {
        "accessKey": given.get("access_key") or os.environ.get(environment.ACCESS_KEY),
        "secretKeyFile": given.get("secret_key_file"),
    }
    rest = {name: value for name, value in options.items() if name.lower() not in _CREDENTIALS}
    return {**rest, **{name: value for name, value in chosen.items() if value}}
