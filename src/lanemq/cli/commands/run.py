"""`lanemq run module:app`: the handlers of an app, in one process or in several, restarted when they end or change.

With one worker and without `--reload` the app runs in this process. Otherwise this process only watches: each worker is
a process of its own and a member of the group, so queues are divided among them as among machines; `monitor=` of the
app is the one address that answers for all of them (`worker_monitor`). A worker that ends
is started again, later each time if it keeps ending at once. With `--reload` all workers are replaced when a Python
file below the folder changes, unless the file has a syntax error.

SIGINT and SIGTERM go to all workers, which finish their handlers and hand their queues over. A second signal ends them
at once. If this process is killed, the workers notice and end as on SIGTERM.
"""

import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from lanemq.cli.listening import check_can_listen
from lanemq.cli.options import CliError, WrongUsage
from lanemq.cli.output import log_to_stderr, plural
from lanemq.cli.worker_monitor import WorkerMonitors
from lanemq.clock import Clock, SystemClock
from lanemq.core.backoff import Backoff
from lanemq.model.environment import WORKER, install_extra
from lanemq.model.errors import LaneError
from lanemq.net.address import parse_address
from lanemq.signals import ChildProcesses, handled

if TYPE_CHECKING:
    from lanemq.client.consumer.app import App

LOOK_EVERY = 0.5
"""Seconds between two looks at the workers and at the files."""

STEADY = 10_000
"""Milliseconds that a worker must have run for its next start to be immediate again."""

RESTARTS = Backoff(first=0.5, factor=2, max=30)
"""How long a worker that ended waits for its next start."""


_ENDED = (0, None, -signal.SIGTERM)
"""Exit codes of workers that left no handler unfinished. One that was just started ends by SIGTERM itself: it had no
handler yet."""


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Processes. More than there are queues in a topic get nothing of it to do.",
)
@click.option("--reload", is_flag=True, help="Restart the workers when a Python file below --folder changes.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Folder that MODULE is imported from.  [default: the current one]",
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def run(target: str, workers: int, reload: bool, folder: Path, log_level: str) -> None:
    """Run the handlers of an App, in one process or in several.

    MODULE:APP names a module and the App in it, as in `shop.billing:app`. Ctrl-C lets running handlers finish; a
    second one ends at once.
    """
    worker = os.environ.pop(WORKER, "")
    log_to_stderr(log_level.upper(), begins_with=f"worker {worker} " if worker.isdecimal() else "")
    if workers == 1 and not reload:
        load_app(target, folder).run()
        return
    if reload and find_spec("watchfiles") is None:
        raise CliError(f"--reload needs watchfiles: {install_extra('reload')}")
    if not reload:
        _check_app(load_app(target, folder))
    words = [sys.executable, "-m", "lanemq.cli.main", "run", target, "--folder", str(folder), "--log-level", log_level]
    failed = Supervisor(words, workers, folder if reload else None).run()
    if failed:
        raise CliError(f"{plural(failed, 'worker')} had to be ended before the handlers had finished")


def _check_app(app: "App") -> None:
    """Raises `CliError` if the monitor of all workers could not listen: workers that start would take queues from
    other members before that is known. That the app can be imported is checked too: a mistake in it would end every
    worker again and again."""
    from lanemq.client.consumer.monitor import DEFAULT_PORT

    if app.options.monitor is not None:
        check_can_listen(parse_address(app.options.monitor, DEFAULT_PORT), "monitor=")


def load_app(target: str, folder: Path) -> "App":
    """The app that `module:name` names."""
    from lanemq.client.consumer.app import App

    module, colon, name = target.partition(":")
    if not module or (colon and not name):
        raise WrongUsage(f"{target!r} does not name an app: write MODULE:APP, such as shop.billing:app")
    if module.endswith(".py") or "/" in module:
        path = Path(module)
        elsewhere = "" if path.parent in (Path(), folder) else f" --folder {path.parent}"
        raise WrongUsage(
            f"{module!r} is a file, and an app is named by its module: write lanemq run "
            f"{path.stem}:{name or 'app'}{elsewhere}"
        )
    sys.path.insert(0, str(folder.resolve()))
    try:
        loaded = importlib.import_module(module)
    except LaneError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's module
        name_missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if name_missing is not None and f"{module}.".startswith(f"{name_missing}."):
            raise WrongUsage(
                f"there is no module {module!r} in {folder.resolve()}: use --folder, or another name"
            ) from None
        click.echo(own_traceback(error), err=True)
        raise CliError(f"module {module!r} cannot be imported") from None
    found = getattr(loaded, name or "app", None)
    if isinstance(found, App):
        return found
    apps = [each for each, value in vars(loaded).items() if isinstance(value, App)]
    hint = f"it has {', '.join(apps)}" if apps else "it has no App"
    raise WrongUsage(f"{name or 'app'!r} in module {module!r} is not an App: {hint}")


def own_traceback(error: BaseException) -> str:
    """The traceback of an error in the user's module, without the frames of the import and of this program."""
    frames = error.__traceback__
    while frames is not None and _is_importing(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(error.with_traceback(frames))).rstrip()


def _is_importing(file: str) -> bool:
    return file == __file__ or "importlib" in file


@dataclass(slots=True)
class WorkerProcess:
    """One worker: its process, and when it may be started again if that has ended."""

    process: subprocess.Popen[bytes] | None = None
    started: int = 0
    start_at: int = 0
    quick_ends: int = 0


class Supervisor:
    """Keeps a number of worker processes running until a signal ends them."""

    def __init__(self, words: list[str], count: int, watched: Path | None, clock: Clock | None = None) -> None:
        self._words = words
        self._workers = [WorkerProcess() for _ in range(count)]
        self._children = ChildProcesses()
        self._monitors = WorkerMonitors(count)
        self._watched = watched
        self._clock = clock or SystemClock()
        self._woken = threading.Event()
        self._signals = 0

    def run(self) -> int:
        """Runs until a signal; the number of workers that did not end by themselves after it."""
        with handled(self._received):
            try:
                self._watch()
            finally:
                self._end_all()
                self._children.close()
                self._monitors.close()
        return sum(each.process is not None and each.process.returncode not in _ENDED for each in self._workers)

    def _watch(self) -> None:
        changes = None if self._watched is None else changed_files(self._watched, self._woken)
        while not self._signals:
            self._start_missing()
            if (address := self._monitors.look()) is not None:
                click.echo(f"metrics of all workers on http://{address}/metrics", err=True)
            if changes is None:
                self._woken.wait(LOOK_EVERY)
                continue
            changed = next(changes, [])
            wrong = [each for each in map(syntax_problem, changed) if each]
            if wrong:
                click.echo(f"{wrong[0]}: the workers continue as they are until it is changed again", err=True)
            elif changed:
                click.echo(f"{changed[0]} changed: restarting {plural(len(self._workers), 'worker')}", err=True)
                self._end_all()
                for number, worker in enumerate(self._workers):
                    worker.process, worker.start_at = None, 0
                    self._monitors.ended(number)

    def processes(self) -> list[int]:
        """The process ids of the workers that run."""
        return [each.process.pid for each in self._workers if each.process is not None and each.process.poll() is None]

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._woken.set()

    def _start_missing(self) -> None:
        now = self._clock.now()
        for number, worker in enumerate(self._workers):
            if worker.process is not None and worker.process.poll() is not None:
                self._ended(number, worker.process.pid, worker.process.returncode, now)
                self._monitors.ended(number)
            if worker.process is None and now >= worker.start_at:
                worker.started = now
                worker.process = self._children.start(
                    self._words, {**os.environ, WORKER: str(number), **self._monitors.environment(number)}
                )

    def _ended(self, number: int, pid: int, code: int, now: int) -> None:
        worker = self._workers[number]
        worker.quick_ends = worker.quick_ends + 1 if now - worker.started < STEADY else 0
        pause = RESTARTS.delay(worker.quick_ends) if worker.quick_ends else 0
        worker.process, worker.start_at = None, now + pause
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        when = f"in {pause / 1000:g} s" if pause else "now"
        click.echo(f"worker {number} (process {pid}) {how}; another starts {when}", err=True)

    def _end_all(self) -> None:
        """Passes SIGTERM on and waits; another signal ends the workers at once."""
        running = [each.process for each in self._workers if each.process is not None and each.process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        seen = self._signals
        for process in running:
            while process.poll() is None:
                if self._signals > max(seen, 1):
                    process.kill()
                try:
                    process.wait(LOOK_EVERY)
                except subprocess.TimeoutExpired:
                    continue


def changed_files(folder: Path, stop: threading.Event) -> Iterator[list[Path]]:
    """The Python files below a folder that were added, changed or removed since the last time; often there are none.

    Each takes at most `LOOK_EVERY` seconds. Ends when `stop` is set.
    """
    from watchfiles import PythonFilter, watch

    milliseconds = int(LOOK_EVERY * 1000)
    for changes in watch(
        folder, watch_filter=PythonFilter(), stop_event=stop, rust_timeout=milliseconds, yield_on_timeout=True
    ):
        yield sorted({Path(path) for _, path in changes})


def syntax_problem(path: Path) -> str | None:
    """Why a file cannot be imported, with its line; None if it can be, or is gone. A half-written file is one case."""
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except FileNotFoundError:
        return None
    except (SyntaxError, ValueError, OSError) as error:
        return f"{path} cannot be imported: {error}"
    return None
