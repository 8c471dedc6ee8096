"""What happened, in order: a hash over all of it, the last lines, and counts of what a run has exercised.

Two runs of one seed must give one hash: a single read of a real clock, a set in the order of addresses or an
unseeded number would change it.
"""

import hashlib
import zlib
from collections import Counter, deque
from collections.abc import Callable

KEPT_LINES = 400


class Trace:
    """Lines go into the hash at once; the last few are kept for people, or all of them if somebody listens."""

    def __init__(self, now: Callable[[], float], folder: str, listen: Callable[[str], None] | None = None) -> None:
        """`folder` has another name in every run: it is left out where an error message mentions it."""
        self.seen: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        self._now = now
        self._listen = listen
        self._folder = folder
        self._folder_bytes = folder.encode()
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, who: object, what: str, data: bytes = b"") -> None:
        """`data` counts by its bytes; the line shows only how many there were."""
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
