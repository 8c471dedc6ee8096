"""Numbers, times and sizes as the pages write them. No cell shows an epoch, a -1 or a raw number of milliseconds."""

from datetime import datetime
from typing import Final

from lanemq.model.wording import printable

NONE: Final = "–"
MAX_PREVIEW = 120
PREVIEW_BYTES = 4 * MAX_PREVIEW
"""Bytes that have so many characters in any case."""
_STEPS: Final = ((60, "s"), (60, "min"), (24, "h"), (10**9, "days"))


def counted(count: int, noun: str) -> str:
    """`1 message`, `1,103 messages`."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def number(value: float | None) -> str:
    """`1,204`; a dash for nothing."""
    return NONE if value is None else f"{value:,.0f}"


def known(value: int | None) -> str:
    """As `number`; None is a figure that could not be read, not one that there is not."""
    return "unknown" if value is None else number(value)


def rate(per_second: float | None) -> str:
    """`12/s`, with a decimal below ten."""
    if per_second is None:
        return NONE
    return f"{per_second:,.1f}/s" if 0 < per_second < 10 else f"{per_second:,.0f}/s"


def span(seconds: float | None) -> str:
    """`350 ms`, `3.2 s`, `4 min`, `2 h`, `3 days`."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds > 0 else "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = seconds
    for size, unit in _STEPS:
        if left < size:
            return f"{left:.0f} {unit}"
        left /= size
    raise AssertionError


def lateness(seconds: float | None) -> str:
    """As `span`; None is a group's lag that no broker knows, not one that it does not have."""
    return "unknown" if seconds is None else span(seconds)


def ago(millis: float) -> str:
    """How long ago something happened."""
    return "now" if millis < 1500 else f"{span(millis / 1000)} ago"


def clock_time(when: datetime | None) -> str:
    """Local date and time, to the second, with its zone."""
    return NONE if when is None else f"{when.astimezone():%Y-%m-%d %H:%M:%S} {time_zone(when)}"


def time_zone(when: datetime) -> str:
    """The zone of all times on a page, which is that of the console's machine: `UTC+01:00`."""
    offset = when.astimezone().strftime("%z")
    return "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"


def time_of_day(when: datetime) -> str:
    """Local time, to the millisecond."""
    return when.astimezone().strftime("%H:%M:%S.%f")[:-3]


def exact_time(when: datetime | None) -> str:
    return "" if when is None else when.astimezone().isoformat(" ", "milliseconds")


def size(count: float | None) -> str:
    """`512 B`, `1.5 GiB`."""
    if count is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def preview(body: bytes) -> str:
    """The beginning of a body as one line of text; bytes that are not text are escaped."""
    text = printable(body[:PREVIEW_BYTES].decode("utf-8", "backslashreplace"))
    return text if len(text) <= MAX_PREVIEW else text[: MAX_PREVIEW - 1] + "…"
