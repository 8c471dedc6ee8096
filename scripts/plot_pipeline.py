"""Plots the progress of a pipeline over time: lag, batch times, repeats, parked keys and dead letters.

    lanemq pipeline run orders.toml --json > progress.jsonl
    python scripts/plot_pipeline.py progress.jsonl -o orders.png

Every batch and retry pass of the file is drawn. Other lines are counted and reported: a log has other lines, and a run
that was killed may leave half of one. Needs matplotlib: `pip install '.[plots]'` in the checkout.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

COUNTS = ("repeats", "held", "parked", "dead_letters", "poison", "gaps")
"""The counts of the stage that are drawn."""


@dataclass(frozen=True)
class Unit:
    """A batch or a retry pass."""

    at: float
    """End, in seconds since the first one began."""
    is_retry_pass: bool
    epoch: int
    messages: int
    seconds: float
    rate: float
    lag: int
    lag_seconds: float | None
    waiting: int
    """Lanes that are held or parked after it."""
    counts: dict[str, int] = field(default_factory=dict)


def read_progress(path: Path) -> tuple[list[Unit], int]:
    """Batches and retry passes in the order of the file, and the number of other lines."""
    documents, other = [], 0
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            found = json.loads(line) if line.startswith("{") else None
        except ValueError:
            found = None
        if found is not None and {"batch", "seconds", "lag"} <= found.keys():
            documents.append(found)
        else:
            other += bool(line.strip())
    return list(_units(documents)), other


def _units(documents: list[dict[str, Any]]) -> list[Unit]:
    """Placed by the time of their lines; without times, one directly after the other."""
    units, passed, first = [], 0.0, None
    for each in documents:
        passed += each["seconds"]
        at = passed
        if each.get("time"):
            ended = datetime.fromisoformat(each["time"]).timestamp()
            first = ended - each["seconds"] if first is None else first
            at = ended - first
        units.append(_unit(each, at))
    return units


def _unit(each: dict[str, Any], at: float) -> Unit:
    counts = {name: count for name, count in each.get("counts", {}).items() if name in COUNTS and count}
    if each.get("repeated"):
        counts["batches the sink had"] = 1
    return Unit(
        at, bool(each.get("retry_pass")), each.get("epoch", 1), each.get("messages", 0), each["seconds"],
        each.get("rate", 0.0), each["lag"], each.get("lag_seconds"),
        each.get("counts", {}).get("lanes_held", 0), counts,
    )  # fmt: skip


def draw(units: list[Unit], title: str, out: Path) -> None:
    """Draws three charts over one time axis. A vertical line marks each start of the pipeline."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (lag, batch, noted) = plt.subplots(3, 1, sharex=True, figsize=(10, 9), constrained_layout=True)
    figure.suptitle(title)
    _draw_lag(lag, units)
    _draw_batches(batch, units)
    _draw_counts(noted, units)
    noted.set_xlabel("seconds since the first batch began")
    for before, after in pairwise(units):
        if after.epoch != before.epoch:
            for axes in (lag, batch, noted):
                axes.axvline(after.at - after.seconds, color="black", linestyle=":", linewidth=1)
    for axes in (lag, batch, noted):
        axes.grid(visible=True, alpha=0.3)
        axes.set_ylim(bottom=0)
    figure.savefig(out, dpi=110)
    plt.close(figure)


def _draw_lag(axes: Any, units: list[Unit]) -> None:
    axes.plot([u.at for u in units], [u.lag for u in units], color="tab:blue", marker=".", label="messages behind")
    axes.set_ylabel("messages behind")
    aged = [u for u in units if u.lag_seconds is not None]
    if aged:
        right = axes.twinx()
        right.plot([u.at for u in aged], [u.lag_seconds for u in aged], color="tab:red", marker=".", linewidth=1)
        right.set_ylabel("age of the oldest, seconds", color="tab:red")
        right.set_ylim(bottom=0)


def _draw_batches(axes: Any, units: list[Unit]) -> None:
    for is_retry_pass, colour, label in ((False, "tab:blue", "batches"), (True, "tab:orange", "retry passes")):
        some = [u for u in units if u.is_retry_pass == is_retry_pass]
        if some:
            axes.scatter([u.at for u in some], [u.seconds for u in some], s=14, color=colour, label=label)
    axes.set_ylabel("seconds a batch")
    right = axes.twinx()
    full = [u for u in units if u.messages]
    right.plot([u.at for u in full], [u.rate for u in full], color="tab:green", linewidth=1)
    right.set_ylabel("messages a second", color="tab:green")
    right.set_ylim(bottom=0)
    axes.legend(loc="upper right")


def _draw_counts(axes: Any, units: list[Unit]) -> None:
    axes.step([u.at for u in units], [u.waiting for u in units], where="post", color="black", label="keys waiting")
    for name in sorted({name for unit in units for name in unit.counts}):
        total, sums = 0, []
        for unit in units:
            total += unit.counts.get(name, 0)
            sums.append(total)
        axes.step([u.at for u in units], sums, where="post", label=f"{name} so far")
    axes.set_ylabel("counted")
    axes.legend(loc="upper left")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plot lag and batch times of a pipeline.")
    parser.add_argument("progress", type=Path, help="what `lanemq pipeline run --json` printed")
    parser.add_argument("-o", "--out", type=Path, default=Path("pipeline.png"), help="the picture; default %(default)s")
    given = parser.parse_args(arguments)
    units, other = read_progress(given.progress)
    if not units:
        print(
            f"{given.progress} has no line about a batch: is it the output of lanemq pipeline run --json?",
            file=sys.stderr,
        )
        return 1
    batches = sum(not unit.is_retry_pass for unit in units)
    passes, messages = len(units) - batches, sum(unit.messages for unit in units)
    try:
        draw(
            units,
            f"{given.progress.name}: {messages:,} messages in {batches} batches and {passes} retry passes",
            given.out,
        )
    except ModuleNotFoundError as missing:
        print(f"plots need {missing.name}: pip install '.[plots]' in the checkout", file=sys.stderr)
        return 1
    print(
        f"{given.out}: {batches} batches, {passes} retry passes" + (f"; {other} other lines left out" if other else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
