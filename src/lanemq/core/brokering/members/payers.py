"""Who pays for the memory of each member's subscriptions."""

from lanemq.core.brokering.members.group import add_count


class Payers:
    """The payer of each member, by group and client id, and the bytes of its subscriptions."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], tuple[str, int]] = {}
        self._totals: dict[str, int] = {}
        """Payer → bytes of all subscriptions that it pays for; no zeros."""

    def pay(self, group: str, client_id: str, payer: str, size: int) -> None:
        """Set who pays for a member, and how much; nobody if `size` is 0."""
        before, paid = self._members.get((group, client_id), (payer, 0))
        if (before, paid) == (payer, size):
            return
        self._members.pop((group, client_id), None)
        if paid:
            add_count(self._totals, before, -paid)
        if size:
            self._members[group, client_id] = (payer, size)
            add_count(self._totals, payer, size)

    def of(self, group: str, client_id: str) -> str:
        """Who pays for a member; empty if nobody does."""
        return self._members.get((group, client_id), ("", 0))[0]

    def total(self, payer: str) -> int:
        return self._totals.get(payer, 0)

    def paid(self, payer: str, group: str, client_id: str) -> int:
        """What this payer pays for a member."""
        paid_by, paid = self._members.get((group, client_id), (payer, 0))
        return paid if paid_by == payer else 0
