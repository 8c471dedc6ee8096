"""Watches the cluster: routes, masters, Apache's locks, disabled groups, and the entries at the name servers.

Everything here is repeated for ever, and each part at its own pace, so what an operator or a lost name server undoes is
repaired. A broker that does not answer is tried again in the next round; a frozen one makes a round 3 s longer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from lanemq.broker.context import GroupContext
from lanemq.broker.handlers.locks import MAX_QUEUES
from lanemq.client.coordination import EVERY_GROUP, CoordinatorEntry, Leader, read_entry
from lanemq.coordinator.cluster import CONSUME_ENABLE, ClusterLink, masters_in, settings_of
from lanemq.coordinator.copies import OffsetCopies
from lanemq.coordinator.entries import OtherCoordinator, refuse_other
from lanemq.coordinator.queues import ClusterQueues
from lanemq.coordinator.retention import ParkedCopies
from lanemq.core.brokering.cluster.epoch_floor import EpochFloor
from lanemq.model.errors import ConnectFailed, LaneError, ProtocolError, UsageError
from lanemq.model.names import RETRY_PREFIX, pull_group
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.model.wording import plural
from lanemq.net.address import Address
from lanemq.net.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

CONFIRMED_QUEUES = "confirmed queues"
"""Name of a value in the state database."""
NEW_OWNERS_WAIT = "new owners wait"
"""Name of a value in the state database: for how many milliseconds a leader grants no queue to a new owner. It is 0
once a leader has waited so long."""
ROUND_SECONDS = 1.0
"""Between two looks at the masters. Long: after a fail-over, queues of killed members wait longer."""
ROUTES_EVERY_MS = 30_000
LOCKS_EVERY_MS = 15_000
"""Apache's brokers keep a lock for 60 s: three renewals may be lost."""
GROUPS_EVERY_MS = 10_000
"""Between two looks at whether groups are still disabled at a broker."""
ENTRIES_EVERY_MS = 5_000
MAX_SILENCE_MS = 10_000
"""Without an answer of a name server for so long, the coordinator says that it is not ready."""
PARKED_EVERY_MS = 30_000
"""Between two looks at what brokers may delete of parked lanes."""
COPIES_EVERY_MS = 5_000
"""Between two copies of offsets to the brokers. Short: each costs a broker a request for every queue that moved."""


class ClusterWatch:
    """The loop that keeps `ClusterQueues` true, and the cluster as coordinated groups need it."""

    def __init__(
        self,
        name: str,
        leader: Leader,
        link: ClusterLink,
        context: GroupContext,
        queues: ClusterQueues,
        heard_of: Callable[[int], None],
    ) -> None:
        """`name` is the id of the cluster's coordinators, `leader` this one. `heard_of` is told of higher terms."""
        self._name = name
        self.leader = leader
        self._heard_of = heard_of
        self._limit = EpochFloor()
        queues.epochs_left = lambda: self._limit.allows(context.locks.highest_epoch, MAX_QUEUES)
        self._link = link
        self._context = context
        self._queues = queues
        self.client_id = f"lanemq-coordinator-{name}"
        """Holds Apache's locks."""
        self.copies = OffsetCopies(context, link)
        self.parked_copies = ParkedCopies(context, link)
        self._last: dict[object, Millis] = {}
        self._guarded: dict[tuple[str, Address], None] = {}
        """Groups, and masters at which they were seen disabled."""
        self._warnings = RateLimitedLog(log, context.clock)
        self._seen_at = context.clock.now()
        """When the cluster was asked with success."""

    def problems(self) -> list[str]:
        """Why groups are not served completely; any thread may ask."""
        silent = self._context.clock.now() - self._seen_at
        if silent <= MAX_SILENCE_MS:
            return []
        return [f"no name server has answered for {silent / 1000:.0f} s: queues of lost members get no new owner"]

    async def run(self) -> None:
        """Watches until cancelled. Raises `OtherCoordinator` if another one has taken over the cluster."""
        await self.parked_copies.restore()
        while True:
            self._queues.changed.clear()
            try:
                await self.round()
            except OtherCoordinator:
                raise
            except (LaneError, ProtocolError) as error:
                self._warnings.failed("cluster", "the cluster could not be asked, trying again", error)
            except Exception:
                log.exception("watching the cluster failed; the next round follows")
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._queues.changed.wait()
            except TimeoutError:
                pass

    async def round(self) -> None:
        """One look at everything that is due."""
        await self._end_wait()
        if self._is_due("entries", ENTRIES_EVERY_MS):
            await self.register()
        masters = masters_in(await self._link.info())
        self._seen_at = self._context.clock.now()
        changed = masters != self._queues.masters
        self._queues.masters_are(masters)
        for group in self._context.groups:
            self._queues.ask_for(self._topics_of(group))
        for topic in self._queues.topics:
            if changed or self._is_due(("route", topic), ROUTES_EVERY_MS) or not self._queues.of_topic(topic):
                if self._queues.found(topic, await self._link.route(topic)):
                    await self._save_confirmed()
                self._warn_of_new_queues(topic)
        await asyncio.gather(*(self._at_master(name, master) for name, master in masters.items()))

    async def _end_wait(self) -> None:
        """Note that new owners need not wait any more, at the next leader either."""
        if 0 < self._queues.grants_from <= self._context.clock.now():
            state = self._context.state
            await self._context.row_thread.call(lambda: state.put(NEW_OWNERS_WAIT, "0"))
            self._queues.grants_from = Millis(0)

    # new queues

    def _warn_of_new_queues(self, topic: str) -> None:
        if new := self._queues.unconfirmed(topic):
            self._warnings.warn(
                f"queues of {topic}",
                f"topic {topic} has {plural(len(new), 'new queue')}, such as {new[0]}: keys may have moved there, "
                f"whose older messages wait in other queues, so they get no owner. When the older messages are done: "
                f"lanemq group coordinate GROUP --confirm-queues",
            )

    def unconfirmed(self, group: str) -> list[MessageQueue]:
        """The queues of a group's topics that wait for a confirmation."""
        return [queue for topic in self._topics_of(group) for queue in self._queues.unconfirmed(topic)]

    async def confirm(self, queues: Iterable[MessageQueue]) -> None:
        """Let queues get owners, for good."""
        self._queues.confirmed.confirm(queues)
        await self._save_confirmed()
        self._queues.changed.set()

    async def _save_confirmed(self) -> None:
        state, text = self._context.state, msgspec.json.encode(list(self._queues.confirmed)).decode()
        await self._context.row_thread.call(lambda: state.put(CONFIRMED_QUEUES, text))

    def forget(self, group: str) -> None:
        """A group has moved back to the brokers."""
        self._queues.unlocked(group)
        for key in [key for key in self._guarded if key[0] == group]:
            del self._guarded[key]

    # name servers

    def _entry(self) -> CoordinatorEntry:
        return CoordinatorEntry(self._name, self.leader, self._limit.wanted(self._context.locks.highest_epoch))

    async def take_over(self) -> None:
        """Replace the entries of a coordinator whose store is lost. If that one still runs, it ends."""
        await self._link.put(EVERY_GROUP, str(self._entry()), self._link.servers)

    async def register(self) -> None:
        """Enter this coordinator and its groups where they are missing; raises if one with another store is entered."""
        await asyncio.gather(*(self._register_at(server) for server in self._link.servers))

    async def register_once(self) -> None:
        """Return when one name server has the entries: a frozen one delays nobody. `run` enters them at the others."""
        waiting = {asyncio.create_task(self._register_at(server)) for server in self._link.servers}
        entered = False
        while waiting and not entered:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            entered = any([task.result() for task in done])
        for task in waiting:
            task.cancel()
        if not entered:
            raise ConnectFailed("no name server takes the entries of this coordinator, so members would not find it")

    async def register_everywhere(self) -> None:
        """Enter this coordinator at all name servers: any of them tells one that was frozen that it is replaced."""
        if not all(await asyncio.gather(*(self._register_at(server) for server in self._link.servers))):
            raise UsageError("a name server did not take the entries of this coordinator: start it again")

    async def _register_at(self, server: Address) -> bool:
        """Whether a name server has the entries, and the limit of epochs with them."""
        wanted = dict.fromkeys(self._context.groups, str(self.leader))
        entry = self._entry()
        wanted[EVERY_GROUP] = str(entry)  # the last: where it is, all others are
        try:
            settings = await self._link.settings(server)
            if text := settings.get(EVERY_GROUP):
                refuse_other(self._name, read_entry(text))
                self._heard_of(read_entry(text).leader.term)
            for key, value in wanted.items():
                served = key == EVERY_GROUP or key in self._context.groups  # it may have left in between
                if served and settings.get(key) != value and await self._link.put(key, value, (server,)):
                    return False
        except OtherCoordinator:
            raise
        except LaneError as error:
            self._warnings.failed(str(server), f"name server {server} has no current entries", error)
            return False
        self._limit.entered(entry.limit)
        return True

    # brokers

    async def _at_master(self, name: str, master: Address) -> None:
        try:
            await self._guard(master)
            for group in tuple(self._context.groups):
                if (group, master) in self._guarded:
                    await self._lock(group, name, master)
                    if self._is_due(("copies", group, master), COPIES_EVERY_MS):
                        await self.copies.copy(group, name, master)
            if self._is_due(("parked", master), PARKED_EVERY_MS):
                await self.parked_copies.round(name, master)
        except (LaneError, ProtocolError) as error:
            self._warnings.failed(name, f"queues of {name} get no new owner until it answers", error)

    async def _guard(self, master: Address) -> None:
        """Make sure that no other member gets messages of the groups from a master."""
        groups = tuple(self._context.groups)
        new = [group for group in groups if (group, master) not in self._guarded]
        if not (new or self._is_due(("groups", master), GROUPS_EVERY_MS)) or not groups:
            return
        table = await self._link.group_settings(master)
        for group in groups:
            if group not in self._context.groups:
                continue  # it has left in between
            settings = settings_of(table, group)
            if settings.get(CONSUME_ENABLE, True):
                if group not in new:
                    log.warning("group %s was enabled at %s and is disabled again: it is coordinated", group, master)
                await self._link.set_consumption(master, settings, enabled=False)
            if pull_group(group) not in table:
                await self._link.create_pull_group(master, group)
            if group in self._context.groups:  # it may have left in between
                self._guarded[group, master] = None
            if others := await self._link.online(master, group):
                self._warnings.warn(
                    f"{group} at {master}",
                    f"group {group} is coordinated, and clients at {', '.join(others)} try to consume it at {master}, "
                    f"without getting messages: stop them, or give them another group",
                )

    async def _lock(self, group: str, name: str, master: Address) -> None:
        queues = [queue for queue in self._queues_of(group) if queue.broker == name]
        confirmed = (queue for queue in queues if queue in self._queues.confirmed)
        missing = [queue for queue in confirmed if not self._queues.grantable(group, queue)]
        if not queues or not (missing or self._is_due(("lock", group, master), LOCKS_EVERY_MS)):
            return
        asked_at = self._context.clock.now()
        granted = await self._link.lock(master, group, self.client_id, queues)
        refused = [queue for queue in queues if queue not in granted]
        if group not in self._context.groups:
            return
        self._queues.locked(group, master, granted, asked_at=asked_at)
        self._queues.unlocked(group, refused)
        if refused:
            self._warnings.warn(
                f"{group} at {name}",
                f"group {group}: another client holds {len(refused)} locks of queues at {name}, such as that of "
                f"{refused[0]}: they get no owner until it is stopped, or for a minute after it was killed",
            )
        if any(self._queues.grantable(group, queue) for queue in missing):
            self._context.notices.group_changed((group,))  # members that were refused ask again now

    def _queues_of(self, group: str) -> Iterable[MessageQueue]:
        for topic in self._topics_of(group):
            yield from self._queues.of_topic(topic)

    def _topics_of(self, group: str) -> list[str]:
        """The topics in which members of the group need leases."""
        view = self._context.members.snapshot(group)
        named = {each.topic for each in view.subscriptions} if view is not None else set()
        return sorted(
            each for each in named.union(self._context.progress.topics(group)) if not each.startswith(RETRY_PREFIX)
        )

    def _is_due(self, what: object, every: int) -> bool:
        now = self._context.clock.now()
        if now - self._last.get(what, Millis(now - every)) < every:
            return False
        self._last[what] = now
        return True
