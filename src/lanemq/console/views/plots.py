"""Plots as values: where lines, ticks and their texts are. A template draws them as SVG, so they need no script.

A line is drawn in a box of `WIDTH` by `HEIGHT` units that is stretched to the width of the page; ticks of time are
percentages of it. The text beside a plot has the same figures, one for each minute.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from lanemq.clock import wall_time
from lanemq.console.wording import NONE
from lanemq.model.units import Millis

T = TypeVar("T")
Series = Mapping[str, Sequence[float | None]]
"""Columns by name, one value per sample; `time` is in seconds since 1970. None is a gap."""

WIDTH = 1000
HEIGHT = 150
"""Pixels; only the width is stretched."""
HEADROOM = 1.1
"""The highest value is drawn so far below the upper edge."""
MAX_ROWS = 5
MAX_COLUMNS = 6
ROW_MS = 60_000
"""The text beside a plot has a row for each minute."""
_SPANS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
"""Seconds between two ticks of time."""


@dataclass(frozen=True, slots=True)
class PlotTick:
    """A line of the grid: `at` is a height in pixels, or a percentage of the width."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One series, as the `d` of an SVG path."""

    tone: str
    """The class that has its colour."""
    said: str
    """What follows a value in words: `20 stored`."""
    path: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of one or more series over the same times."""

    lines: tuple[PlotLine, ...]
    rows: tuple[PlotTick, ...]
    columns: tuple[PlotTick, ...]
    points: str
    """For each sample its place, time and values, for the script that shows those under the pointer."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Which series is drawn, and how."""

    name: str
    tone: str
    said: str


def plot(series: Series, drawn: Sequence[Drawn], *, whole: bool = False) -> Plot | None:
    """None until there are two samples. `whole`: the values count things, so no tick is a fraction."""
    times = [each for each in series["time"] if each is not None]
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    columns = [series[each.name] for each in drawn]
    top = max(1.0, HEADROOM * max((value for column in columns for value in column if value is not None), default=0.0))
    places = [round((each - times[0]) / (times[-1] - times[0]) * WIDTH) for each in times]
    lines = tuple(
        PlotLine(each.tone, each.said, _path(places, column, top)) for each, column in zip(drawn, columns, strict=True)
    )
    points = (
        " ".join((str(place), _clock(time, 1), *map(_value, values)))
        for place, time, *values in zip(places, times, *columns, strict=True)
    )
    return Plot(lines, tuple(_rows(top, whole)), tuple(_columns(times[0], times[-1])), ";".join(points))


def _path(places: Sequence[int], values: Sequence[float | None], top: float) -> str:
    """A line through the known values. A value between two gaps becomes a dot."""
    parts: list[str] = []
    for number, (place, value) in enumerate(zip(places, values, strict=True)):
        if value is None:
            continue
        starts = not number or values[number - 1] is None
        parts.append(f"{'M' if starts else 'L'}{place} {_height(value, top):g}{'h0' if starts else ''}")
    return "".join(parts)


def _height(value: float, top: float) -> float:
    return round(HEIGHT * (1 - value / top), 1)


def _value(value: float | None) -> str:
    return NONE if value is None else f"{value:,.10g}"


def _rows(top: float, whole: bool) -> Iterator[PlotTick]:
    step = _round_step(top / MAX_ROWS)
    step = max(1.0, step) if whole else step
    for number in range(int(top / step) + 1):
        yield PlotTick(_height(number * step, top), f"{number * step:,.10g}")


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, … and of 0.1, 0.2, 0.5, … that is not below `least`."""
    unit = 10.0 ** math.floor(math.log10(least))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least * 0.999)


def _columns(first: float, last: float) -> Iterator[PlotTick]:
    step = next((each for each in _SPANS if (last - first) / each <= MAX_COLUMNS), _SPANS[-1])
    begins = _local(first)
    since_hour = begins.minute * 60 + begins.second + begins.microsecond / 1e6
    at = first + -since_hour % step
    while at <= last:
        yield PlotTick(round((at - first) / (last - first) * 100, 2), _clock(at, step))
        at += step


def _clock(seconds: float, step: int) -> str:
    """Local time as the tables have it; with seconds if the ticks are less than a minute apart."""
    return _local(seconds).strftime("%H:%M:%S" if step < 60 else "%H:%M")


def _local(seconds: float) -> datetime:
    return wall_time(Millis(round(seconds * 1000))).astimezone()


def one_a_minute(rows: Sequence[T], at: Callable[[T], float]) -> tuple[T, ...]:
    """The newest, one for each minute before it, and the oldest, newest first; `at` is in ms."""
    found = list(rows[-1:])
    for each in reversed(rows):
        if at(found[-1]) - at(each) >= ROW_MS:
            found.append(each)
    if rows and found[-1] is not rows[0]:
        found.append(rows[0])
    return tuple(found)
