"""Copies the offsets of groups to the brokers every few seconds, so that RocketMQ's tools show true lag.

A coordinator whose folder is lost continues from these copies. What was copied is on disk before it is sent: after a
restart, an offset that somebody has set meanwhile is recognised.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from lanemq.broker.context import GroupContext
from lanemq.coordinator.cluster import ClusterLink
from lanemq.core.brokering.cluster.copied_offsets import CopiedOffsets
from lanemq.log.state.group_rows import GroupRows
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address
from lanemq.net.calling.connection import Connection
from lanemq.net.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

_PREFIX = "copied offsets of "
_Rows = list[tuple[str, str, int, list[int]]]


class _Look(NamedTuple):
    """What a broker had."""

    connection: Connection
    offsets: Mapping[MessageQueue, int]


class OffsetCopies:
    """The copies of all groups."""

    def __init__(self, context: GroupContext, link: ClusterLink) -> None:
        self._context = context
        self._link = link
        self._of: dict[str, CopiedOffsets] = {}
        self._last_looks: dict[tuple[str, str], _Look] = {}
        """By group and broker."""
        self._warnings = RateLimitedLog(log, context.clock)

    async def copy(self, group: str, broker: str, master: Address) -> None:
        """Copy what moved in the queues of one broker."""
        ours = {
            each.queue: each.offset for each in self._context.progress.of_group(group) if each.queue.broker == broker
        }
        known = {queue: offset for queue, offset in ours.items() if offset is not None}
        if not known:
            return
        copies = self._copies(group)
        look = _Look(await self._link.connection(master), await self._link.offsets_or_zero(master, group))
        before = self._last_looks.get((group, broker))
        # A broker that restarted, or another master, has another connection. It may have older copies.
        same = before.offsets if before is not None and before.connection is look.connection else {}
        self._last_looks[group, broker] = look
        wanted, others = copies.compare(known, look.offsets, same)
        for queue, theirs, offset in others:
            if theirs <= 0 and not await self._link.has_committed(master, group, queue):
                wanted[queue] = offset  # the broker has forgotten it
                continue
            self._warnings.warn(
                f"{group} {queue}",
                f"group {group}: somebody has set its offset in {queue} to {theirs} at the broker. The group is "
                f"coordinated and stays at {offset}. To move it there: lanemq group reset {group} "
                f"--topic {queue.topic} --queue {queue.queue_id} --to {theirs}",
            )
        if wanted or others:
            copies.copied(wanted)
            await self._save(group, copies)
            if wanted and group in self._context.groups:  # it may have left in between
                await self._link.commit_all(master, group, wanted)

    def restore(self, copies: Mapping[str, CopiedOffsets]) -> None:
        """After a start: what was copied before, by group."""
        self._of.update(copies)

    def overwrite(self, group: str, queues: Iterable[tuple[str, int]]) -> None:
        """An operator has reset a group in these queues, by topic and number."""
        for topic, number in queues:
            self._copies(group).overwrite(topic, number)

    async def forget(self, group: str) -> None:
        self._of.pop(group, None)
        self._last_looks = {key: look for key, look in self._last_looks.items() if key[0] != group}
        await self._save(group, CopiedOffsets())

    def _copies(self, group: str) -> CopiedOffsets:
        return self._of.setdefault(group, CopiedOffsets())

    async def _save(self, group: str, copies: CopiedOffsets) -> None:
        state, rows = self._context.state, [(*queue, values) for queue, values in copies.copies.items()]
        text = msgspec.json.encode(rows).decode()
        await self._context.row_thread.call(lambda: state.put(_name(group), text))


def read_copies(rows: GroupRows) -> dict[str, CopiedOffsets]:
    """The copies of each group, as the state database has them."""
    found = rows.rows("SELECT name, value FROM kv WHERE name LIKE ?", (f"{_PREFIX}%",))
    return {
        name.removeprefix(_PREFIX): CopiedOffsets(_queues(msgspec.json.decode(text, type=_Rows)))
        for name, text in found
    }


def _name(group: str) -> str:
    """The name of the value in the state database."""
    return f"{_PREFIX}{group}"


def _queues(rows: Iterable[tuple[str, str, int, list[int]]]) -> dict[MessageQueue, list[int]]:
    return {MessageQueue(topic, broker, queue_id): values for topic, broker, queue_id, values in rows}
