"""Plots of a run, as PNG: a bar for each contender."""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from benchmarks.peers.contenders import CONTENDERS, OURS
from benchmarks.peers.goals import FLATS
from benchmarks.peers.rounds import Case, Figure

OUR_COLOUR, OTHER_COLOUR = "#1b7f79", "#9aa5b1"
PLOTS = {
    "peers-send": (
        "Acknowledged ordered sends per second, 100 B, relaxed",
        (("send one", "one at a time"), ("send pipelined", "pipelined"), ("send batch", "batches")),
    ),
    "peers-send-async": (
        "The same on an event loop",
        (
            ("send async one", "one at a time"),
            ("send async pipelined", "a future each"),
            ("send async tasks", "1,000 tasks"),
        ),
    ),
    "peers-consume": (
        "Messages handled per second, in the order of their keys",
        (("consume", "handler uses key and event"), ("slow handler", "5 ms handler, one queue")),
    ),
    "peers-latency": (
        "End to end, p99 in milliseconds",
        (("latency 1000/s", "1,000 messages/s"), ("latency 10000/s", "10,000 messages/s")),
    ),
    "peers-take-over": (
        "Seconds until the keys of a lost member continue",
        (("take-over kill", "kill -9"), ("take-over freeze", "frozen")),
    ),
    "peers-footprint": (
        "The server",
        (("start-up", "start-up, s"), ("idle memory", "idle memory, MiB"), ("disk", "disk, B per message")),
    ),
}


def draw(measured: dict[Case, Figure], folder: Path) -> list[Path]:
    """Draws what was measured; the files."""
    mpl.use("Agg")
    files = []
    for name, (heading, paths) in PLOTS.items():
        bars = [(title, bars_of(measured, path)) for path, title in paths]
        if any(each for _, each in bars):
            folder.mkdir(parents=True, exist_ok=True)
            _draw([(title, each) for title, each in bars if each], heading, folder / f"{name}.png")
            files.append(folder / f"{name}.png")
    if panels := [panel for panel in growth_of(measured) if panel[1]]:
        folder.mkdir(parents=True, exist_ok=True)
        heading = f"CPU time per message of {OURS}, client and server, in microseconds"
        _draw(panels, heading, folder / "peers-growth.png")
        files.append(folder / "peers-growth.png")
    return files


def growth_of(measured: dict[Case, Figure]) -> list[tuple[str, dict[str, float]]]:
    """The cost of our paths that must not grow, by the number of queues or keys."""
    panels = []
    for goal in FLATS:
        bars: dict[str, float] = {}
        for case in (each for path in goal.paths for each in measured if (each.path, each.contender) == (path, OURS)):
            count, what = case.path.partition(", ")[2].split()
            more = measured[case].more
            bars[f"{int(count):,} {what}"] = more["client_cpu_us"] + more["server_cpu_us"]
        panels.append((goal.words, bars))
    return panels


def bars_of(measured: dict[Case, Figure], path: str) -> dict[str, float]:
    """Contender to value, relaxed; of several sizes the smallest. End-to-end paths give their p99."""
    found: dict[str, float] = {}
    for contender in CONTENDERS:
        cases = [case for case in measured if case[:2] == (path, "relaxed") and case.contender == contender.name]
        if cases:
            figure = measured[min(cases)]
            found[contender.name] = figure.more.get("p99", figure.value)
    return found


def _draw(panels: list[tuple[str, dict[str, float]]], heading: str, file: Path) -> None:
    height = 0.9 + 0.34 * max(len(bars) for _, bars in panels)
    figure, all_axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), height), squeeze=False)
    for axes, (title, bars) in zip(all_axes[0], panels, strict=True):
        names = list(bars)[::-1]
        colours = [OUR_COLOUR if name == OURS else OTHER_COLOUR for name in names]
        drawn = axes.barh(names, [bars[name] for name in names], color=colours)
        axes.bar_label(
            drawn, labels=[f" {bars[name]:,.4g}" if bars[name] < 1000 else f" {bars[name]:,.0f}" for name in names]
        )
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(heading, fontsize=11)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
