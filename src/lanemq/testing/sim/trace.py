"""The trace of a run: a hash over everything that happened, the last lines, and counts of what was exercised.

Two runs of a seed must have the same hash. Reading a real clock, iterating over a set in the order of addresses, or an
unseeded random number would change it.
"""

import hashlib
import zlib
from collections import Counter, deque
from collections.abc import Callable

KEPT_LINES = 400


class Trace:
    """Hashes lines at once and keeps the last ones; `listen` is called with every line."""

    def __init__(self, now: Callable[[], float], folder: str, listen: Callable[[str], None] | None = None) -> None:
        """`folder` has a different name in every run and is replaced where an error message mentions it."""
        self.seen: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        self._now = now
        self._listen = listen
        self._folder = folder
        self._folder_bytes = folder.encode()
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, who: object, what: str, data: bytes = b"") -> None:
        """Adds a line. The bytes of `data` are part of the hash; the line shows their number and checksum."""
        line = f"{self._now():.6f} {who} {what}".replace(self._folder, "data")
        if data:
            line += f" {len(data)} B {zlib.crc32(data.replace(self._folder_bytes, b'data')):08x}"
        self._hash.update(line.encode())
        self.last.append(line)
        if self._listen is not None:
            self._listen(line)

    def count(self, what: str, by: int = 1) -> None:
        self.seen[what] += by

    def digest(self) -> str:
        return self._hash.hexdigest()
