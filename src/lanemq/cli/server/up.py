"""`lanemq up`: a broker, its console and a front for gRPC clients, each in a process of its own, until a signal.

If one part ends, the others are stopped, and the command reports it. If the command is killed, its parts end too.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lanemq.cli.listening import check_can_listen
from lanemq.cli.options import CliError
from lanemq.cli.server.console import as_arguments, check_console_packages, console_options
from lanemq.net.address import parse_address
from lanemq.signals import ChildProcesses, handled

START_SECONDS = 60.0
"""How long a part may take to say its address; a broker with a large log needs a while."""
STOP_SECONDS = 20.0
READY = {
    "broker": re.compile(r"(?:^|\"message\":\")LaneMQ \S+ on (\S+:\d+)", re.MULTILINE),
    "console": re.compile(r"^LaneMQ console on (\S+).*\ntoken for changes: \S+\n", re.MULTILINE),
}
"""What each part says when it is ready, with its address; the console says its token, too."""
PIPELINE_FILE = Path(__file__).parents[2] / "testing" / "demo" / "shipments.py"
DEMO_MEMBERS = (("shipping", "shipping-1"), ("shipping", "shipping-2"), ("billing", "billing-1"), ("mail", "mail-1"))


@dataclass(slots=True)
class UpParts:
    """The processes, by name, and what they printed."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    """Parts whose end is reported and stops nothing."""
    children: ChildProcesses = field(default_factory=ChildProcesses)

    def start(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        """Starts a part; its output goes to a file of its name. It does not get the terminal's Ctrl-C."""
        with self.log(name).open("wb") as out:
            self.running[name] = self.children.start(
                [sys.executable, "-m", *arguments], environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def address(self, name: str) -> str:
        """Waits until the part says its address."""
        for _ in range(round(START_SECONDS / 0.05)):
            found = READY[name].search(self.log(name).read_text(errors="replace"))
            if found:
                return found[1]
            self.check()
            time.sleep(0.05)
        raise CliError(f"the {name} did not start within {START_SECONDS:.0f} s; see {self.log(name)}")

    def check(self) -> None:
        """Raises an error if a part has ended; an optional one is only reported."""
        for name, process in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            why = self._why_ended(name, code)
            if name not in self.optional:
                raise CliError(why)
            del self.running[name]
            click.echo(f"{why}; everything else keeps running")

    def _why_ended(self, name: str, code: int) -> str:
        if code < 0:
            return f"the {name} was ended by {signal_name(-code)}; its log is {self.log(name)}"
        lines = self.log(name).read_text(errors="replace").strip().splitlines()
        return f"the {name} ended: " + (
            lines[-1].removeprefix("Error: ") if lines else f"no output; see {self.log(name)}"
        )

    def stop(self) -> None:
        """Stops the parts in turn, the broker last, so that members can commit and leave."""
        for name in reversed(self.running):
            process = self.running[name]
            if process.poll() is None:
                process.terminate()
        for name in reversed(self.running):
            if name != "broker":
                _wait(self.running[name])
        if "broker" in self.running:
            _wait(self.running["broker"])
        self.children.close()


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("var/up"),
    show_default=True,
    help="Folder for the broker's data, logs and, with --demo, histories; created if it is missing.",
)
@click.option(
    "--listen", default="127.0.0.1:9876", show_default=True, metavar="HOST:PORT", help="Address of the broker."
)
@click.option(
    "--console", "console_at", default="127.0.0.1:9870", show_default=True, metavar="HOST:PORT",
    help="Address of the console.",
)  # fmt: skip
@click.option(
    "--monitor", metavar="HOST:PORT|off",
    help="Address of the broker's health checks and metrics. Without it, 127.0.0.1:9880, or none if that is in use.",
)  # fmt: skip
@click.option(
    "--grpc", "grpc_at", default="127.0.0.1:8081", show_default=True, metavar="HOST:PORT|off",
    help="Address for RocketMQ 5's gRPC clients; left out if grpcio is not installed, or the default is in use.",
)  # fmt: skip
@console_options
@click.option(
    "--demo", is_flag=True,
    help="Add sample traffic: orders, a failing key, a slow consumer and, if Spark and Java are there, a pipeline.",
)  # fmt: skip
def up(
    data: Path,
    listen: str,
    console_at: str,
    monitor: str | None,
    grpc_at: str,
    open_page: bool,
    demo: bool,
    history: Path | None,
    **console: Any,
) -> None:
    """Run a broker and its console.

    With --demo, also a producer and consumers that show what the console shows: some orders fail and are parked, one
    group is slow, one gives messages up. A pipeline fills a table, if Spark and Java are there. With --history, the
    broker records its history there, too; --demo does so in the data folder.
    """
    check_console_packages()
    check_can_listen(parse_address(listen))
    check_can_listen(parse_address(console_at), "--console")
    front = _front_options(grpc_at)
    data.mkdir(parents=True, exist_ok=True)
    parts = UpParts(data)
    if demo and history is None:
        history = data / "history"
    with _stop_event() as stop:
        try:
            chosen = [f"--{name}={value}" for name, value in (("history", history), ("monitor", monitor)) if value]
            parts.start(
                "broker",
                "lanemq.cli.main",
                "broker",
                "--data",
                str(data / "broker"),
                "--listen",
                listen,
                *chosen,
                *front,
            )
            server = parts.address("broker")
            if demo and history is not None:
                _start_demo(parts, server, history)
                console["pipelines"] = (*console["pipelines"], *_start_pipeline(parts, server, history))
            settings = as_arguments(history=history, **console)
            parts.start("console", "lanemq.cli.main", "console", "--server", server, "--listen", console_at, *settings)
            url = parts.address("console")
            announce(parts, url, server, grpc_at if front else None)
            if open_page:
                webbrowser.open(url)
            while not stop.wait(0.2):
                parts.check()
        finally:
            parts.stop()


def _start_demo(parts: UpParts, server: str, history: Path) -> None:
    parts.start("producer", "lanemq.testing.demo.traffic", "send", server, str(history))
    for group, name in DEMO_MEMBERS:
        parts.start(name, "lanemq.testing.demo.traffic", "consume", server, str(history), group, name)


def _start_pipeline(parts: UpParts, server: str, history: Path) -> list[Path]:
    """The checkpoint of the demonstration's pipeline; none if Spark or Java is missing."""
    if find_spec("pyspark") is None or not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        click.echo("pipeline none: a pipeline needs the extra spark, and Java 17 or newer")
        return []
    folder = (parts.folder / "pipeline").absolute()
    parts.optional.add("pipeline")
    parts.start(
        "pipeline", "lanemq.cli.main", "pipeline", "run", str(PIPELINE_FILE), "--master", "local[1]", "--quiet",
        "--history", str(history),
        environment={**os.environ, "LANEMQ_DEMO_SERVERS": server, "LANEMQ_DEMO_FOLDER": str(folder)},
    )  # fmt: skip
    return [folder / "shipments"]


def _front_options(listen: str) -> list[str]:
    """The broker's options for a front. The default address may be in use: then there is no front."""
    chosen = click.get_current_context().get_parameter_source("grpc_at") is not ParameterSource.DEFAULT
    if listen == "off":
        return []
    try:
        check_can_listen(parse_address(listen), "--grpc")
    except CliError:
        if chosen:
            raise
        return []
    return [f"--grpc={listen}"] if chosen or find_spec("grpc") is not None else []


def announce(parts: UpParts, url: str, server: str, grpc_at: str | None = None) -> None:
    token = re.search(r"^token for changes: (\S+)", parts.log("console").read_text(), re.MULTILINE)
    click.echo(f"console  {url}")
    click.echo(f"broker   {server}")
    if grpc_at is not None:
        click.echo(f"gRPC     {grpc_at}")
    click.echo(f"metrics  {_metrics(parts.log('broker').read_text(errors='replace'))}")
    if token:
        click.echo(f"token    {token[1]}  (to sign in, before you change anything)")
    click.echo(f"logs in {parts.folder}; Ctrl-C stops everything")


def _metrics(said: str) -> str:
    """Where the metrics are, as the broker says it in its first line."""
    if found := re.search(r"monitor on (http://[\w.:\[\]]+)", said):
        return f"{found[1]}/metrics"
    if taken := re.search(r"no monitor: (\S+) is in use", said):
        return f"none: {taken[1]} is in use; choose another address with --monitor"
    return "off"


@contextlib.contextmanager
def _stop_event() -> Iterator[threading.Event]:
    """Set by SIGINT and SIGTERM; a second signal ends at once."""
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    with handled(on_signal):
        yield stop
