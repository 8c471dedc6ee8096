"""The main job: a broker, three producers, three consumers, 100,000 keyed messages, one consumer killed half-way.

Every part runs in a process of its own and writes a history. At the end the independent checker reads all of
them; the table that is shown comes from its verdict, not from the parts' own opinion.

    python -m lanemq.testing.demo --messages 100000 --folder var/demo
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lanemq.checker.checking import Options, check
from lanemq.checker.verdict import Report, Verdict
from lanemq.client.admin import Admin
from lanemq.clock import SystemClock
from lanemq.history import open_history
from lanemq.model.errors import LaneError

TOPIC = "orders"
GROUP = "demo"
QUEUES = 8
KEYS = 1_000
"""Of each producer; no key has two producers, since between those there is no order to keep."""
PRODUCERS = 3
CONSUMERS = 3
PATIENCE_SECONDS = 300.0
"""Far more than a run takes; a run that hangs ends with an error instead of never."""


@dataclass(slots=True)
class Run:
    """One run: where it writes, whom it started, when things happened."""

    folder: Path
    messages: int
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)

    @property
    def history(self) -> Path:
        return self.folder / "history"

    def mark(self, what: str) -> None:
        self.marks[what] = time.perf_counter()

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A part in a process of its own; what it prints goes to a file of its name."""
        with (self.folder / f"{name}.log").open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=out, stderr=out)
        self.processes[name] = process
        return process

    def stop_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@click.command()
@click.option("--messages", default=100_000, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("var/demo"), show_default=True)
def main(messages: int, folder: Path) -> None:
    """Run the main job and check its result."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run = Run(folder, messages)
    console = Console()
    try:
        report = _run(run, console)
    except LaneError as error:
        console.print(f"[red]the run failed:[/red] {error}; the parts' logs are in {folder}")
        sys.exit(1)
    finally:
        run.stop_all()
    console.print(_summary(run, report))
    _say_where_to_look(run, report, console)
    sys.exit(0 if report.verdict is Verdict.PASS else 1)


def _run(run: Run, console: Console) -> Report:
    run.address = _start_broker(run)
    console.print(f"broker on {run.address}: {PRODUCERS} producers, {CONSUMERS} consumers, {run.messages:,} messages")
    with Admin(run.address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES, ordered=True)
        run.mark("start")
        for number in range(CONSUMERS):
            run.start(f"consumer-{number}", "lanemq.testing.demo_roles", "consume", run.address, str(run.history))
        share = run.messages // PRODUCERS
        for number in range(PRODUCERS):
            count = share if number else run.messages - share * (PRODUCERS - 1)
            run.start(
                f"producer-{number}",
                "lanemq.testing.demo_roles", "produce", run.address, str(run.history), str(number), str(count),
            )  # fmt: skip
        _watch(run, admin, console)
    run.mark("end")
    _stop_consumers(run)
    console.print("checking every send, turn, commit and lease …")
    return check([run.history], Options(require=("turns", "rebalance", "faults"), drained=True))


def _start_broker(run: Run) -> str:
    process = run.start(
        "broker",
        "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0",
        "--data", str(run.folder / "data"), "--history", str(run.history),
    )  # fmt: skip
    ready = run.folder / "broker.log"
    for _ in _until("the broker to start"):
        if process.poll() is not None:
            raise LaneError(f"the broker ended at once: {ready.read_text()[-500:]}")
        found = re.search(r"^LaneMQ .* on (\S+:\d+)", ready.read_text(), re.MULTILINE)
        if found:
            return found[1]
    raise AssertionError


def _watch(run: Run, admin: Admin, console: Console) -> None:
    """Shows progress until everything sent is committed; kills a consumer when half of it is."""
    columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        sent_bar = progress.add_task("sent", total=run.messages)
        done_bar = progress.add_task("consumed", total=run.messages)
        for _ in _until("all messages to be consumed"):
            sent, done = _progress(admin)
            progress.update(sent_bar, completed=sent)
            progress.update(done_bar, completed=done)
            if sent == run.messages:
                run.marks.setdefault("sent", time.perf_counter())
            if done * 2 >= run.messages and "kill" not in run.marks:
                _kill_one(run, progress)
            if done >= run.messages:
                return
            _check_alive(run)


def _progress(admin: Admin) -> tuple[int, int]:
    """Messages stored, and messages that the group has committed."""
    sent = sum(queue.end for queue in admin.describe_topic(TOPIC).queues)
    done = sum(queue.offset for queue in admin.describe_group(GROUP).queues if queue.queue.topic == TOPIC)
    return sent, done


def _kill_one(run: Run, progress: Progress) -> None:
    victim = run.processes["consumer-1"]
    record = open_history(run.history, "operator", SystemClock().now_ns)
    record.fault("kill -9", "consumer-1", "start")
    victim.send_signal(signal.SIGKILL)
    record.fault("kill -9", "consumer-1", "end")
    record.close()
    run.mark("kill")
    progress.console.print(f"killed consumer-1 (process {victim.pid}) with SIGKILL half-way")


def _check_alive(run: Run) -> None:
    for name, process in run.processes.items():
        ended = process.poll()
        finished = name.startswith("producer") and ended == 0
        if ended is not None and not finished and not (name == "consumer-1" and "kill" in run.marks):
            raise LaneError(f"{name} ended with {ended}: see {run.folder / name}.log")


def _stop_consumers(run: Run) -> None:
    for name, process in run.processes.items():
        if name.startswith("consumer") and process.poll() is None:
            process.terminate()
    for name, process in run.processes.items():
        if name.startswith("consumer"):
            process.wait(timeout=PATIENCE_SECONDS)


def _until(what: str) -> Iterator[None]:
    """Yields every now and then; gives up with an error that says what was waited for."""
    end = time.perf_counter() + PATIENCE_SECONDS
    while time.perf_counter() < end:
        yield
        time.sleep(0.1)
    raise LaneError(f"waited {PATIENCE_SECONDS:.0f} s for {what}")


def _summary(run: Run, report: Report) -> Table:
    account = report.groups.get(GROUP)
    redelivered = sum(account.redelivered.values()) if account is not None else 0
    seconds = run.marks["end"] - run.marks["start"]
    table = Table(title="ordered messages, end to end")
    table.add_column("what")
    table.add_column("result", justify="right")
    rows = (
        ("messages acknowledged", f"{report.coverage.get('acked', 0):,}"),
        ("messages processed", f"{account.finished if account else 0:,}"),
        ("keys", f"{KEYS * PRODUCERS:,}"),
        ("consumers killed", "1"),
        ("redelivered after the kill", f"{redelivered:,}"),
        ("order violations", str(sum(report.counts.values()))),
        ("seconds", f"{seconds:.1f}"),
        ("messages per second", f"{run.messages / seconds:,.0f}"),
        ("checker's verdict", report.verdict.name),
    )
    for what, result in rows:
        table.add_row(what, result)
    return table


def _say_where_to_look(run: Run, report: Report, console: Console) -> None:
    for reason in report.reasons:
        console.print(f"unknown: {reason}")
    for broken in report.violations[:5]:
        console.print(f"[red]{broken.invariant}[/red] {broken.text}")
    if report.verdict is Verdict.PASS:
        console.print("redelivery after a kill is expected: delivery is at least once; no key's order was affected")
    command = _command()
    console.print(f"check the histories again: {command} check {run.history} --drained", soft_wrap=True)
    console.print(f"the same broker again: {command} broker --data {run.folder / 'data'}", soft_wrap=True)


def _command() -> str:
    """`lanemq` as this shell finds it: `make run` works before anybody has activated its environment."""
    beside = Path(sys.executable).with_name("lanemq")
    if shutil.which("lanemq") or not beside.exists():
        return "lanemq"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
