"""Numbers, durations and untrusted text in sentences, the same in every output."""


def duration_text(millis: float | None) -> str | None:
    """A duration as text: `350 ms`, `12.3 s`, `15 min`, `5 h`, `3 days`; None if it is unknown."""
    if millis is None:
        return None
    if millis < 1_000:
        return f"{millis:.0f} ms"
    if millis < 120_000:
        return f"{millis / 1000:.1f} s"
    if millis < 7_200_000:
        return f"{millis // 60_000:.0f} min"
    return f"{millis // 3_600_000:.0f} h" if millis < 172_800_000 else f"{millis // 86_400_000:.0f} days"


MAX_SHOWN = 80
"""Characters of a value in errors and log lines."""


def shown(value: object) -> str:
    """A value of the user's program in an error: on one line, cut if it is long, and whatever its `repr` does."""
    try:
        text = repr(value[:MAX_SHOWN] if isinstance(value, (str, bytes)) else value)
    except Exception:  # noqa: BLE001 - the value's own code
        return f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """The text with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
