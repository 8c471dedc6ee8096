"""Errors of the command line: one line on stderr and an exit code."""

from collections.abc import Callable

import click

from lanemq.cli.output import printable


class CliError(click.ClickException):
    """An error that is shown as one line on stderr, with exit code 1."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))

    def reworded(self, rewrite: Callable[[str], str]) -> "CliError":
        """The same error with a rewritten message."""
        return type(self)(rewrite(self.message))


class WrongUsage(CliError):
    """An error in the command line or its input; exit code 2."""

    exit_code = 2
