"""A floor of epochs outside the store, so that a store that goes back does not issue an epoch twice.

An equal epoch would be taken for the current owner, and its stale writes for good ones. So a coordinator grants epochs
only below a limit that it has entered at name servers before, and the next leader starts at the highest limit that it
finds. What a store has lost was below it.
"""

EPOCH_STEP = 1_000_000
"""Between two limits. Each leader skips up to two steps, of nine million million that an epoch has room for. A step of
a thousand would have to be entered again within a single request for two thousand queues."""


class EpochFloor:
    """The limit of one leader."""

    def __init__(self) -> None:
        self._entered = 0

    def wanted(self, highest: int) -> int:
        """The limit to enter, if `highest` is the highest epoch that was granted."""
        return (highest // EPOCH_STEP + 2) * EPOCH_STEP

    def entered(self, limit: int) -> None:
        """At least one name server has this limit."""
        self._entered = max(self._entered, limit)

    def allows(self, highest: int, more: int) -> bool:
        """Whether so many epochs may be granted above the highest one."""
        return highest + more <= self._entered
