"""Shards that a worker process has in memory between batches.

The rule guarded here: a shard is in the cache only as some finished unit of work left it. It is taken out while a
unit changes it and put back with the unit's number; a unit that failed leaves nothing. A shard that the wanted
version does not descend from is read anew: a batch that is repeated must not see its own change.

Spark gives a shard's task to any worker, so several may have a shard, each as it was when it last worked on it. That
is memory for speed: who gets it again reads what it missed instead of everything. A copy that others have gone on
without for long is given up.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lanemq.pipelines.batch import NUMBERS_PER_BATCH
from lanemq.pipelines.stages.transitions.shard import Shard, Version
from lanemq.pipelines.stages.transitions.state_files import ShardFiles

KEPT_BATCHES: Final = 16
"""How long a copy is kept while others work on its shard. Fewer: a worker that gets the shard again reads all of it;
more: workers that Spark has turned away from keep memory."""


class ShardCache:
    """By place and shard, the longest unused first."""

    def __init__(self) -> None:
        self._shards: dict[tuple[str, str, str], Shard] = {}

    def take(self, files: ShardFiles, version: Version) -> Shard:
        """The shard at exactly this version, no longer in the cache."""
        cached = self._shards.pop(_key(files), None)
        if cached is None or not files.catch_up(cached, version):
            return files.load(version)
        return cached

    def drop_stale(self, place: Path, query: str, number: int, versions: Mapping[str, Version]) -> None:
        """What others have gone on with, and nobody here has asked for in a while. `number`: the unit that begins."""
        since = number // NUMBERS_PER_BATCH - KEPT_BATCHES
        for key, shard in list(self._shards.items()):
            is_other = shard.version != versions.get(key[2], shard.version)
            if key[:2] == (str(place), query) and is_other and shard.version.number // NUMBERS_PER_BATCH < since:
                del self._shards[key]

    def put(self, files: ShardFiles, shard: Shard, most_keys: int, most_bytes: int) -> None:
        """Keeps the shard, and of the others what fits beside it."""
        self._shards[_key(files)] = shard
        while len(self._shards) > 1 and self._exceeds(most_keys, most_bytes):
            del self._shards[next(iter(self._shards))]

    def _exceeds(self, most_keys: int, most_bytes: int) -> bool:
        kept = self._shards.values()
        return sum(len(each.lanes) for each in kept) > most_keys or sum(each.size or 0 for each in kept) > most_bytes

    def __len__(self) -> int:
        return len(self._shards)


def _key(files: ShardFiles) -> tuple[str, str, str]:
    return str(files.place), files.query, files.shard


CACHE = ShardCache()
"""This process's. Spark's workers live on between tasks."""
