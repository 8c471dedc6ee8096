"""The summary of the main job: both verdicts, their figures, and where to look next."""

import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from lanemq.checker.verdict import Report, Verdict
from lanemq.testing.demo.plan import CONSUMER_GROUP, PIPELINE_GROUP, checkpoint_folder, table_folder
from lanemq.testing.demo.result import MAX_SHOWN, TableVerdict
from lanemq.testing.demo.run import DemoRun


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The comparison of the table, and the checker's report."""

    table: TableVerdict
    report: Report
    repeated: int
    """Number of events that the generator sent twice."""
    pipeline: Mapping[str, int]
    """The pipeline's counts over all batches."""

    @property
    def passed(self) -> bool:
        absorbed = self.pipeline.get("repeats", 0) == self.repeated
        return self.table.passed and self.report.verdict is Verdict.PASS and absorbed


def show(run: DemoRun, verdicts: Verdicts, console: Console) -> None:
    table = Table(title="order life cycles, from producer to table")
    table.add_column("what")
    table.add_column("result", justify="right")
    for what, result in _figures(run, verdicts):
        table.add_row(what, result)
    console.print(table)
    _print_problems(verdicts, console)
    _print_commands(run, verdicts, console)
    console.print("[green]PASS[/green]" if verdicts.passed else "[red]FAIL[/red]")


def _figures(run: DemoRun, verdicts: Verdicts) -> list[tuple[str, str]]:
    report, table = verdicts.report, verdicts.table
    account = report.groups.get(CONSUMER_GROUP)
    absorbed = verdicts.pipeline.get("repeats", 0)
    seconds = run.marks["done"] - run.marks["start"]
    return [
        ("events sent and acknowledged", f"{report.coverage.get('acked', 0):,}"),
        ("  of these sent twice on purpose, applied once", f"{absorbed:,} of {verdicts.repeated:,}"),
        ("  the rest: rows in the table, each once", f"{table.rows:,}"),
        ("orders whose final state is right", f"{table.orders - len(table.wrong):,} of {table.orders:,}"),
        ("events handled in order by the consumers", f"{account.finished if account else 0:,}"),
        ("consumers and executors killed", str(len(run.killed))),
        ("redelivered to consumers after the kill", f"{_redelivered(verdicts):,}"),
        ("batches of the pipeline", f"{verdicts.pipeline.get('batches', 0):,}"),
        ("order violations", str(sum(report.counts.values()))),
        ("seconds, start of Spark included", f"{seconds:.1f}"),
        ("checker's verdict", report.verdict.name),
    ]


def _redelivered(verdicts: Verdicts) -> int:
    account = verdicts.report.groups.get(CONSUMER_GROUP)
    return sum(account.redelivered.values()) if account is not None else 0


def _about_redelivery(count: int) -> str:
    if count:
        return "redelivery after a kill is expected: delivery is at least once; no key's order was affected"
    return "delivery is at least once; this time the kill left nothing to deliver again"


def _print_problems(verdicts: Verdicts, console: Console) -> None:
    for line in verdicts.table.wrong[:MAX_SHOWN]:
        console.print(f"[red]table:[/red] {line}", soft_wrap=True)
    for reason in verdicts.report.reasons:
        console.print(f"unknown: {reason}", soft_wrap=True)
    for broken in verdicts.report.violations[:MAX_SHOWN]:
        console.print(f"[red]{broken.invariant}[/red] {broken.text}", soft_wrap=True)


def _print_commands(run: DemoRun, verdicts: Verdicts, console: Console) -> None:
    command = lanemq_command()
    lines = (
        _about_redelivery(_redelivered(verdicts)),
        f"the table: {table_folder(run.folder)} (Delta)",
        f"check the histories again: {command} check {run.history} --drained --foreign-members",
        f"  (it does not judge {PIPELINE_GROUP}, the group in which the pipeline commits offsets: it calls no handler, "
        f"and the rows were compared above)",
        f"the same broker again: {command} broker --data {run.folder / 'data'} --listen {run.address}",
        f"while it runs, the pipeline's batches, lanes and lag: "
        f"{command} pipeline status {checkpoint_folder(run.folder)}",
    )
    for line in lines:
        console.print(line, soft_wrap=True)


def lanemq_command() -> str:
    """`lanemq`, or its path if the environment is not activated."""
    beside = Path(sys.executable).with_name("lanemq")
    if shutil.which("lanemq") or not beside.exists():
        return "lanemq"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


class BatchLine(msgspec.Struct):
    """The part of a progress line that the summary needs."""

    batch: int
    counts: dict[str, int]
    repeated: bool


def pipeline_totals(log: Path) -> Counter[str]:
    """The stage's counts over all batches, and `batches`."""
    totals: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            batch = msgspec.json.decode(line, type=BatchLine)
            totals.update(batches=1, replayed=int(batch.repeated), **batch.counts)
    return totals
