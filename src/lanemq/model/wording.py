"""Numbers, durations and untrusted text in sentences, the same in every output."""


def duration_text(millis: float | None) -> str | None:
    """A duration as text: `350 ms`, `12.3 s`, `15 min`; None if it is unknown."""
    if millis is None:
        return None
    if millis < 1_000:
        return f"{millis:.0f} ms"
    return f"{millis / 1000:.1f} s" if millis < 120_000 else f"{millis // 60_000:.0f} min"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """The text with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
