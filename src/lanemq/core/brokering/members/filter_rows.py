"""The widest tag filter of each group and topic, for a broker that restarts.

It knows no member until its next heartbeat. If one with fewer tags were back first, it would skip messages that only a
wider one selects. So the widest filter of the present and lost members of a group and topic is on disk, and after a
start it counts like that of a lost member (`lost_members`). A row lasts as long as the filter counts.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lanemq.core.brokering.members.tag_filters import Tags


class FilterRow(NamedTuple):
    """The widest filter of a group's members for a topic; None if they have none, and no row is left."""

    group: str
    topic: str
    tags: Tags | None


class FilterRows:
    """Which rows differ from the disk. `widest` tells the present filter of a group and topic."""

    def __init__(self, widest: Callable[[str, str], Tags | None]) -> None:
        self._widest = widest
        self._changed: dict[tuple[str, str], None] = {}
        """Group and topic whose filters have changed since the last `take`."""
        self._written: dict[tuple[str, str], Tags] = {}
        """What the last row says. Without an entry there is no row, or it is not known."""

    def changed(self, group: str, topic: str) -> None:
        self._changed[group, topic] = None

    def restored(self, rows: Iterable[FilterRow]) -> None:
        """These rows are on disk, and their filters count again."""
        self._changed.clear()
        self._written = {(group, topic): tags for group, topic, tags in rows if tags is not None}

    def take(self) -> list[FilterRow]:
        """The rows that must be written now, in the order of the calls."""
        rows, changed, self._changed = list[FilterRow](), self._changed, {}
        for key in changed:
            tags = self._widest(*key)
            if tags is None:
                self._written.pop(key, None)
            elif tags == self._written.get(key):
                continue
            else:
                self._written[key] = tags
            rows.append(FilterRow(*key, tags))
        return rows

    def give_back(self, rows: Iterable[FilterRow]) -> None:
        """Rows that could not be written: the next `take` returns what is true then."""
        for group, topic, _ in rows:
            self._written.pop((group, topic), None)
            self.changed(group, topic)
