"""`lanemq check HISTORY…`: checks the order of a recorded run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lanemq.checker.checking import CheckOptions
from lanemq.checker.checking import check as check_files
from lanemq.checker.command import print_verdict, with_check_options
from lanemq.checker.reading import bytes_of, find_files
from lanemq.checker.verdict import Report
from lanemq.cli.output import progress_bar


@click.command()
@with_check_options
def check(**asked: Any) -> None:
    """Check the order of a recorded run.

    HISTORY: files or folders.

    Exit codes: 0 no violation was found; 1 a violation, which is explained; 2 unknown, because history is missing or
    the run did too little.
    """
    print_verdict(_check_here, **asked)


def _check_here(paths: Sequence[Path], options: CheckOptions) -> Report:
    with progress_bar("checking", sum(map(bytes_of, find_files(paths)))) as on_read:
        return check_files(paths, options, on_read)
