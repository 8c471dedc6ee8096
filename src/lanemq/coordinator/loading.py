"""What a new leader reads before it answers anything, and what it refuses: the store of another cluster, and a second
store of this one."""

import logging
from typing import NamedTuple

from lanemq.broker.recovery import recovered_groups
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.client import identity as identities
from lanemq.clock import Clock
from lanemq.coordinator.cluster import CONSUME_ENABLE, ClusterLink, Presence, cluster_name, masters_in, settings_of
from lanemq.coordinator.copies import read_copies
from lanemq.coordinator.election import Election
from lanemq.coordinator.entries import KnownEntries, OtherCoordinator, known_entries, refuse_other, refuse_silent
from lanemq.coordinator.queues import RemoteLog
from lanemq.coordinator.reign import Identity, Loaded
from lanemq.coordinator.store import StateStore
from lanemq.coordinator.watch import CONFIRMED_QUEUES, NEW_OWNERS_WAIT
from lanemq.core.brokering.cluster.epoch_floor import EPOCH_STEP
from lanemq.core.brokering.cluster.leadership import is_complete
from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.log.state.database import COORDINATOR
from lanemq.log.state.group_rows import EPOCH_FLOOR, GroupRows
from lanemq.model.errors import StorageError, UsageError
from lanemq.model.units import Millis
from lanemq.net.address import Address
from lanemq.wire.route_bodies import ClusterInfo

log = logging.getLogger(__name__)

_CLUSTER = "cluster"
"""Name of a value in the store."""
LED_IN = "led in"
"""Name of a value in the store: the run of the server in which the last leader began."""


TAKE_OVER_MS = Millis(15_000)
"""How long a coordinator that cannot be reached from here may still answer members: three looks at its entry."""


class Start(NamedTuple):
    """How a leader begins."""

    store: StateStore
    rows: GroupRows
    """Those of its term."""
    election: Election
    link: ClusterLink
    thread: DiskThread
    clock: Clock
    address: Address
    replace: bool
    """It takes the place of coordinators whose store is lost."""


async def load(start: Start) -> Loaded:
    """Read everything, in the thread of the rows; raises `UsageError` if this store may not be used here.

    The caller has a term, and renews it meanwhile.
    """
    info, known = await start.link.info(), await known_entries(start.link)
    start.election.heard_of(known.term)
    rows, call = start.rows, start.thread.call
    identity = await call(lambda: _identity(rows, cluster_name(info), start.clock))
    groups = await call(rows.groups)
    _check_cluster(start.store, identity, info)
    wait = Millis(0)
    if not start.replace:
        wait = await _check_entries(start, identity, known)
        if not known.entries:
            await _check_groups(start, list(groups), info)
    floor, wait = await call(lambda: _floor(start, known, wait))
    return Loaded(
        identity,
        await call(lambda: recovered_groups(rows, start.clock, start.thread, RemoteLog())),
        await call(rows.leases),
        await call(lambda: rows.get(CONFIRMED_QUEUES) or "[]"),
        await call(lambda: read_copies(rows)),
        floor,
        Millis(start.clock.now() + wait) if wait else Millis(0),
    )


def known_identity(rows: GroupRows) -> Identity | None:
    """Who the coordinators with this store are; None if it is new."""
    name, cluster = rows.get(COORDINATOR), rows.get(_CLUSTER)
    return None if name is None or cluster is None else Identity(name, cluster)


def check_cluster(store: StateStore, info: ClusterInfo) -> None:
    """Refuse the store of another cluster."""
    identity = known_identity(store.group_rows)
    if identity is not None:
        _check_cluster(store, identity, info)


def _check_cluster(store: StateStore, identity: Identity, info: ClusterInfo) -> None:
    here = cluster_name(info)
    if identity.cluster != here:
        raise UsageError(
            f"{store.shown} belongs to the cluster {identity.cluster}, and the name servers have {here}: start it with "
            f"the name servers of that cluster, or with state of its own"
        )


def _identity(rows: GroupRows, cluster: str, clock: Clock) -> Identity:
    """Who these coordinators are; a new store gets an id of its own.

    Its epochs begin at the time in seconds: above those of a store that was lost.
    """
    known = known_identity(rows)
    if known is not None:
        return known
    if rows.groups():
        raise StorageError("the state does not say which cluster it is for: restore it from a backup")
    identity = Identity(identities.origin.random(6).hex(), cluster)
    with rows.together():
        rows.put(EPOCH_FLOOR, str(clock.wall() // 1000))
        rows.put(_CLUSTER, identity.cluster)
        rows.put(COORDINATOR, identity.name)
    return identity


async def _check_entries(start: Start, identity: Identity, known: KnownEntries) -> Millis:
    """Refuse a second store of the cluster, and a copy of the folder of a coordinator that runs.

    Returns how long another coordinator may still answer members.
    """
    for entry in known.entries:
        refuse_other(identity.name, entry)
    if start.store.shared:
        return Millis(0)
    others, wait = {entry.leader.address for entry in known.entries} - {start.address}, Millis(0)
    if start.election.terms > 1 and others:
        raise OtherCoordinator(
            f"while this coordinator did not run, a copy of its folder was started at {', '.join(map(str, others))}: "
            f"continue with the folder there, which is newer"
        )
    if start.election.terms == 1:
        refuse_silent(known)
    for address in others:
        presence = await start.link.presence(address)
        if presence is Presence.ANSWERS:
            raise UsageError(
                f"the coordinator of this cluster runs at {address} already, with another data folder: stop it "
                f"first, and continue with the newer folder"
            )
        if presence is Presence.SILENT:
            wait = TAKE_OVER_MS
            log.warning(
                "the coordinator at %s may be frozen, or cannot be reached from here: queues get no new owner for "
                "%.0f s, in which it would see that it is replaced", address, wait / 1000,
            )  # fmt: skip
    return wait


async def _check_groups(start: Start, groups: list[str], info: ClusterInfo) -> None:
    """The name servers know no coordinator: they have lost their settings, or this is another cluster."""
    tables = [await start.link.group_settings(each) for each in masters_in(info).values()]
    for group in groups:
        if all(settings_of(table, group).get(CONSUME_ENABLE, True) for table in tables):
            raise UsageError(
                f"group {group} of {start.store.shown} is not coordinated at this cluster: it is enabled at every "
                f"broker. This is the state of another cluster, or the group was enabled there by hand"
            )


def _floor(start: Start, known: KnownEntries, wait: Millis) -> tuple[int, Millis]:
    """Below what no epoch is granted, and how long queues get no new owners: at least `wait`. Ends all leases in a
    store that has gone back: it does not know the last owners.

    The wait is noted, because this leader may end before it is over; then the next one waits again.
    """
    rows, election, replaced = start.rows, start.election, start.election.replaced
    assert replaced is not None, "this process has claimed a term"
    leases, led_in, floor = rows.leases(), rows.get(LED_IN), max(known.limit, rows.epoch_floor())
    noted = int(rows.get(NEW_OWNERS_WAIT) or 0)
    wait = max(wait, Millis(noted))
    complete = is_complete(replaced, led_in, election.former, election.known_term)
    if not complete:
        floor = max([floor, *(row.epoch for row in leases)]) + 2 * EPOCH_STEP
        longest = max([LANE_TIMES.broker_lease_ms, *(row.lease_ms for row in leases)])
        wait = max(wait, Millis(longest))
        log.error(
            "%s was restarted, restored or promoted while no coordinator could tell whether it has lost changes: all "
            "leases end, queues get owners again in %.1f s, and epochs continue above %d. If changes were lost, "
            "messages since then are handled again, and lanes that were redriven or discarded, and offsets before a "
            "reset, may be back: look at lanemq parked list and lanemq group describe",
            start.store.shown, wait / 1000, floor,
        )  # fmt: skip
    with rows.together():
        if not complete:
            rows.end_leases(floor)
        if wait != noted:
            rows.put(NEW_OWNERS_WAIT, str(wait))
        if led_in != replaced.run:
            rows.put(LED_IN, replaced.run)
    return floor, wait
