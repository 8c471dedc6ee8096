"""Reads of single messages that are spread over a queue, with as few pulls as possible."""

from collections.abc import Iterable

WINDOW = 32
"""Messages that one pull of an Apache broker returns at most."""


def windows(offsets: Iterable[int], width: int = WINDOW) -> list[list[int]]:
    """Ascending offsets in groups that one pull of `width` messages covers."""
    groups: list[list[int]] = []
    for offset in offsets:
        if groups and offset < groups[-1][0] + width:
            groups[-1].append(offset)
        else:
            groups.append([offset])
    return groups
