"""How this process comes to lead, and for how long: the loops around `core/brokering/cluster/leadership`."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.client import identity as identities
from lanemq.client.coordination import Leader
from lanemq.clock import Clock
from lanemq.coordinator.store import StateStore
from lanemq.core.brokering.cluster.leadership import (
    LOOK_EVERY_MS,
    NO_LEADER,
    RENEW_EVERY_MS,
    Contender,
    Sight,
    Term,
    TermRow,
    claim,
)
from lanemq.model.errors import StorageError
from lanemq.net.address import Address, parse_address
from lanemq.net.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

G = TypeVar("G")

SILENCE_SECONDS = 5.0
"""How long a coordinator that waits for its turn waits for an answer of the store."""
CHECK_SECONDS = 0.1
"""Between two looks at whether the term is over. Its answers end by themselves; this is how soon others notice."""


class Election:
    """Contends for a term, and keeps it. One term at a time."""

    def __init__(self, store: StateStore, thread: DiskThread, clock: Clock, address: Address) -> None:
        """`address` is where members reach this process. The store is connected."""
        self._store = store
        self._thread = thread
        self._clock = clock
        self._address = address
        self._connected = True
        self._warnings = RateLimitedLog(log, clock)
        self.leader: Leader | None = None
        """Who leads, as the last look at the store says."""
        self.known_term = 0
        """The highest term that this process has seen in the store, or heard of elsewhere."""
        self.replaced: Sight | None = None
        """The row that the last claim of this process replaced."""
        self.former: TermRow | None = None
        """The row as the last term of this process left it."""
        self.looked = asyncio.Event()
        """Set after the first look at the store."""
        self.problem = ""
        """Why the store cannot be used; empty if it can."""
        self.terms = 0
        """How often this process began to lead."""
        self.last_tick = clock.now()

    async def won(self) -> Term:
        """Contend until this process leads."""
        contender = Contender(self._store.former)
        while True:
            self.last_tick = self._clock.now()
            try:
                if (term := await self._contended(contender)) is not None:
                    return term
            except StorageError as error:
                self.problem, self._connected = str(error), False
                self._warnings.warn("store", f"the state cannot be used, trying again: {error}")
                contender = Contender(self._store.former)
            self.looked.set()
            await asyncio.sleep(LOOK_EVERY_MS / 1000)

    async def _contended(self, contender: Contender) -> Term | None:
        """One look at the store, and a claim if it may be made; the term of a claim that succeeded."""
        store = self._store
        if not self._connected:
            await self._asked(store.connect)
            self._connected = True
        sight = await self._asked(store.look)
        self.problem = ""
        contender.saw(sight, now=self._clock.now())
        self.known_term = max(self.known_term, sight.row.term)
        self.leader = leader_of(sight.row)
        seen = contender.replaceable(now=self._clock.now())
        if seen is None:
            return None
        row = claim(seen.row, identities.origin.random(8).hex(), str(self._address), known=self.known_term)
        if store.shared:
            store.former = Sight(row, seen.run)
        if not await self._asked(lambda: store.claim(seen, row)):
            return None
        assert store.term is not None, "a claim that succeeded begins a term"
        self.replaced, self.leader = seen, Leader(self._address, row.term)
        self.terms += 1
        return store.term

    async def _asked(self, job: Callable[[], G]) -> G:
        """The result of a job in the thread of the rows. A server that is silent is cut off: another one may lead."""
        asked = asyncio.create_task(self._thread.call(job))
        try:
            while not asked.done():
                await asyncio.wait({asked}, timeout=SILENCE_SECONDS)
                if not asked.done():
                    self._store.cut()
            return asked.result()
        finally:
            asked.cancel()

    async def keep(self, term: Term) -> None:
        """Renew the term until it ends."""
        renewal: asyncio.Task[None] | None = None
        renewed_at = self._clock.now()
        while term.check(now=self._clock.now()):
            if not self._store.shared:
                self._store.renew()  # not in the thread: a slow disk ends no term
            elif (renewal is None or renewal.done()) and self._clock.now() - renewed_at >= RENEW_EVERY_MS:
                renewed_at = self._clock.now()
                renewal = asyncio.create_task(self._renew())
            await asyncio.sleep(CHECK_SECONDS)
        self.ended(term)
        self._store.cut()  # what waits for it in the thread of the rows ends
        if renewal is not None:
            await renewal

    async def _renew(self) -> None:
        try:
            await self._thread.call(self._store.renew)
        except StorageError as error:
            self._warnings.warn("renewal", f"the term could not be renewed: {error}")

    def ended(self, term: Term) -> None:
        """The term is over; the next one begins with what is in the store then."""
        self.former, self.leader, self._connected = term.row, None, not self._store.shared

    def heard_of(self, number: int) -> None:
        """A member, or a name server, has seen a term that this process's own terms must be above."""
        self.known_term = max(self.known_term, number)
        term = self._store.term
        if term is not None and term.number < number:
            term.end(f"there is a coordinator with term {number}")


def leader_of(row: TermRow) -> Leader | None:
    """Who leads, as the store's row says."""
    if row.leader == NO_LEADER or not row.address:
        return None
    return Leader(parse_address(row.address), row.term)
