"""TLS and credentials of `lanemq pipeline`: the flags of every command, over what a pipeline's file says.

A source keeps what its file says where the environment says otherwise, so the flags become options of the source;
a sink of kind topic that declares nothing finds them in the environment. The rules guarded here: what the command
line says wins, option by option; a user comes with his own secret and never with the file's of another.
"""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from lanemq.cli.options import errors_name_flags
from lanemq.cli.security import with_security_options
from lanemq.model import environment

if TYPE_CHECKING:
    from lanemq.pipelines.source import Topic

F = TypeVar("F", bound=Callable[..., Any])

_TLS: Final = {
    "tls_ca": ("tls.ca", environment.TLS_CA),
    "tls_cert": ("tls.cert", environment.TLS_CERT),
    "tls_key": ("tls.key", environment.TLS_KEY),
    "tls_verify": ("tls.verify", environment.TLS_VERIFY),
}
"""Flags, what they are called in a source, and in the environment."""
_FILES: Final = ("tls_ca", "tls_cert", "tls_key", "secret_key_file")
_USER: Final = ("accesskey", "secretkey", "secretkeyfile", "securitytoken")


def runs_securely(command: F) -> F:
    """Adds the options of `with_security_options`; a command that loads a pipeline uses them with `secured`."""

    @functools.wraps(command)
    def protected(*args: Any, **options: Any) -> Any:
        with errors_name_flags():
            return command(*args, **options)

    return cast(F, with_security_options(protected))


def secured(source: "Topic") -> "Topic":
    """A source that a Python file has made, with the flags of the command that runs now."""
    options = overridden(source.options)
    return source if options == source.options else type(source)(**options)


def overridden(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a source, with the flags of the command that runs now instead of what they say."""
    given = {name: _value(name, value) for name, value in click.get_current_context().params.items() if value}
    return _with_user(_with_tls(dict(options), given), given)


def _value(name: str, value: object) -> str:
    """Files by their whole path: what plans and runs a query may be started elsewhere."""
    return str(Path(str(value)).absolute()) if name in _FILES else str(value)


def _with_tls(options: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """A file that says nothing of TLS leaves the rest to the environment, as for every other command."""
    chosen = {_TLS[name][0]: given[name] for name in _TLS if name in given}
    if not chosen and "tls" not in given:
        return options
    ours = {name: value for name, value in options.items() if name.lower().split(".")[0] == "tls"}
    rest = {name: value for name, value in options.items() if name not in ours}
    known = {name.lower(): value for name, value in ours.items() if name.lower() != "tls"}
    if not ours:
        known = {option: os.environ[name] for option, name in _TLS.values() if os.environ.get(name)}
    return {**rest, "tls": "true", **known, **chosen}


def _with_user(options: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """One word about the user is a word about all of him; half of him is refused by `with_security_options`."""
    chosen = {
        "accessKey": given.get("access_key") or os.environ.get(environment.ACCESS_KEY),
        "secretKeyFile": given.get("secret_key_file"),
    }
    if "access_key" not in given and "secret_key_file" not in given:
        return options
    rest = {name: value for name, value in options.items() if name.lower() not in _USER}
    return {**rest, **{name: value for name, value in chosen.items() if value}}
