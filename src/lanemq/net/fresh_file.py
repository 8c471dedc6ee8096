"""Files that may change while a process runs, such as renewed certificates and the file of users.

A changed file is read again before its content is used. If it has become invalid, the content read before stays in
force and the log says so.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from lanemq.clock import Clock
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis

T = TypeVar("T")

LOOK_EVERY = Millis(1_000)
"""How often files are checked, at most; a check costs microseconds per file."""

log = logging.getLogger(__name__)


class FreshFile(Generic[T]):
    """The content of some files, read again when one of them changes. Only the constructor raises."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], clock: Clock) -> None:
        self._paths = paths
        self._read = read
        self._clock = clock
        self._seen = self._state()
        self._value = read()
        self._look_at = clock.now() + LOOK_EVERY

    def value(self) -> T:
        now = self._clock.now()
        if now >= self._look_at:
            self._look_at = Millis(now + LOOK_EVERY)
            self._look()
        return self._value

    def reload(self) -> None:
        """Read the files now, changed or not."""
        self._look_at = Millis(self._clock.now() + LOOK_EVERY)
        self._look(always=True)

    def _look(self, *, always: bool = False) -> None:
        state = self._state()
        if state == self._seen and not always:
            return
        self._seen = state
        try:
            self._value = self._read()
        except InvalidOption as error:
            log.error("%s; what was read before stays in force", error)
        else:
            log.warning(
                "read again, %s: %s", "as asked" if always else "because it changed", ", ".join(map(str, self._paths))
            )

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_state_of, self._paths))


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
