"""Runs the main job: starts everything, kills a consumer and an executor half-way, waits, and checks the result."""

import os
import shutil
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from lanemq.checker.checking import CheckOptions, check
from lanemq.cli.output import PIPE_WIDTH
from lanemq.client.admin.admin import Admin
from lanemq.model.errors import LaneError
from lanemq.testing.demo import summary
from lanemq.testing.demo.plan import (
    CONSUMER_GROUP,
    CONSUMERS,
    MASTER,
    QUEUES,
    SEED,
    TOPIC,
    checkpoint_folder,
    table_folder,
)
from lanemq.testing.demo.progress import BarProgress, CountedPhase, LineProgress, progress_on
from lanemq.testing.demo.result import compare, read_rows, rows_in
from lanemq.testing.demo.run import DemoRun, start_broker, start_console, until
from lanemq.testing.order_life import OrderEvent, order_events, order_truth
from lanemq.testing.processes import executors


@click.command()
@click.option("--orders", default=8_000, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("var/demo"), show_default=True)
@click.option("--master", default=MASTER, show_default=True, help="where Spark runs")
def main(orders: int, folder: Path, master: str) -> None:
    """Run the main job and check its result."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run, console = DemoRun(folder, orders), Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    try:
        verdict = _run(run, master, console)
    except LaneError as error:
        console.print(f"[red]the run failed:[/red] {error}; the parts' logs are in {folder}", soft_wrap=True)
        sys.exit(1)
    finally:
        run.stop_all()
    summary.show(run, verdict, console)
    sys.exit(0 if verdict.passed else 1)


def _run(run: DemoRun, master: str, console: Console) -> summary.Verdicts:
    events = order_events(run.orders, SEED)
    run.mark("start")
    run.address = start_broker(run)
    page = start_console(run, checkpoint_folder(run.folder))
    console.print(
        f"console on {page}; broker on {run.address}; {len(events):,} events of {run.orders:,} orders, "
        f"{len(events) - _distinct(events):,} of them sent twice on purpose, so that {_distinct(events):,} belong into "
        f"the table; {CONSUMERS} consumers; Spark on {master}, which takes up to a minute to start",
        soft_wrap=True,
    )
    with Admin(run.address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES, ordered=True)
        _start_parts(run, master)
        _watch(run, admin, events, console)
    run.mark("done")
    run.end("pipeline")
    run.end("consumer")
    console.print("comparing the table with the generator's truth, and checking every send, turn, commit and lease …")
    table = compare(read_rows(table_folder(run.folder)), order_truth(events))
    # The pipeline commits as group `warehouse` and records no history; its table is compared instead.
    options = CheckOptions(require=("turns", "rebalance", "faults"), drained=True, foreign_members=True)
    report = check([run.history], options)
    counts = summary.pipeline_totals(run.log_of("pipeline"))
    return summary.Verdicts(table, report, len(events) - _distinct(events), counts)


def _start_parts(run: DemoRun, master: str) -> None:
    os.environ |= {"LANEMQ_DEMO_FOLDER": str(run.folder.absolute()), "LANEMQ_DEMO_SERVERS": run.address}
    declared = Path(__file__).with_name("pipeline.py")
    run.start(
        "pipeline", "lanemq.cli.main", "pipeline", "run", str(declared), "--master", master, "--json",
        "--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false", "--history", str(run.history),
    )  # fmt: skip
    for number in range(CONSUMERS):
        run.start(f"consumer-{number}", "lanemq.testing.demo.roles", "consume", run.address, str(run.history))
    run.start("generator", "lanemq.testing.demo.roles", "generate", run.address, str(run.history), str(run.orders))


def _watch(run: DemoRun, admin: Admin, events: list[OrderEvent], console: Console) -> None:
    """Shows progress until everything is sent, consumed and in the table; kills two processes half-way."""
    distinct = _distinct(events)
    phases = (
        CountedPhase("sent", len(events)),
        CountedPhase("consumed", len(events)),
        CountedPhase("in table", distinct),
    )
    with progress_on(console, phases) as progress:
        for _ in until("all events to be sent, consumed and in the table"):
            run.check_alive()
            sent, consumed, in_table = counts = _counts(run, admin)
            progress.show(counts, time.perf_counter(), "" if in_table else "Spark is starting")
            if consumed * 2 >= len(events) and "consumer-1" not in run.killed:
                run.kill("consumer-1", run.processes["consumer-1"].pid)
                progress.say("killed consumer-1 with SIGKILL half-way")
            if in_table * 2 >= distinct and "executor" not in run.killed:
                _kill_executor(run, progress)
            if min(sent, consumed) >= len(events) and in_table >= distinct:
                return


def _distinct(events: list[OrderEvent]) -> int:
    return len({(event.order, event.seq) for event in events})


def _counts(run: DemoRun, admin: Admin) -> tuple[int, int, int]:
    """Messages stored, messages that the consumers have committed, rows in the table."""
    sent = sum(queue.end for queue in admin.describe_topic(TOPIC).queues)
    consumed = sum(queue.offset for queue in admin.describe_group(CONSUMER_GROUP).queues if queue.queue.topic == TOPIC)
    return sent, consumed, rows_in(table_folder(run.folder))


def _kill_executor(run: DemoRun, progress: BarProgress | LineProgress) -> None:
    processes = executors(run.processes["pipeline"].pid)
    if not processes:
        raise LaneError("Spark has no executor in a process of its own that could be killed: use a cluster as --master")
    run.kill("executor", processes[0])
    progress.say(f"killed one of {len(processes)} Spark executors with SIGKILL half-way")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
