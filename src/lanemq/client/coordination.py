"""Where the coordinator of a group is: an entry for each group in the settings of the name servers.

An entry is at every name server, as the layout of an ordered topic is; one that has it is enough. It names the
coordinator that leads and its term; where name servers differ, the highest term counts. Without an entry the group is
an ordinary one. That a group is coordinated does not depend on the entry alone: its consumption is disabled
at the brokers, so a member that does not know of the coordinator gets no message.

A program, or its environment, may name the coordinator; then the name servers are not asked for it.
"""

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lanemq.client.topics import Steps, setting_in
from lanemq.model.environment import COORDINATOR
from lanemq.model.errors import InvalidOption, RemoteProtocolError, TransportError
from lanemq.net.address import Address, parse_address
from lanemq.wire.admin_headers import KvHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import KVTable

COORDINATOR_NAMESPACE = "LANEMQ_COORDINATOR"
"""The namespace of the settings: the coordinator that leads, by group."""
EVERY_GROUP = "*"
"""The entry of the cluster's coordinators. It is made last: where it is, all others are."""
COORDINATOR_PORT = 9873


class Leader(NamedTuple):
    """A coordinator that leads, or led: an entry at a name server, and what one that does not lead says."""

    address: Address
    term: int = 0

    def __str__(self) -> str:
        return f"{self.address} {self.term}"


def read_leader(text: str) -> Leader:
    """Read an entry of a group, or of an answer."""
    address, _, term = text.partition(" ")
    return Leader(parse_address(address), int(term) if term.isdecimal() else 0)


def named_coordinators(given: str | None) -> tuple[Address, ...]:
    """The coordinators that the program or the environment names; empty: the name servers say who they are."""
    text = given or os.environ.get(COORDINATOR)
    try:
        return tuple(parse_address(each, COORDINATOR_PORT) for each in (text or "").split(";") if each.strip())
    except InvalidOption as error:
        raise InvalidOption(f"{'coordinator' if given else COORDINATOR}: {error}") from None


def coordinator_request(group: str) -> Command:
    """Asks a name server for the coordinator of a group."""
    return Command(RequestCode.GET_KV_CONFIG, 0, ext=KvHeader(namespace=COORDINATOR_NAMESPACE, key=group).to_ext())


def leader_in(replies: Iterable[Command]) -> Leader | None:
    """Who coordinates the group, by the entry with the highest term; None if no name server has one."""
    entries = [text for reply in replies if (text := setting_in(reply))]
    return max(map(read_leader, entries), key=lambda each: each.term, default=None)


def coordinators(servers: Sequence[Address]) -> Steps[dict[str, Leader]]:
    """Who coordinates each group, and under `EVERY_GROUP` the whole cluster, by the entries with the highest term."""
    request = Command(RequestCode.GET_KVLIST_BY_NAMESPACE, 0, ext=KvHeader(namespace=COORDINATOR_NAMESPACE).to_ext())
    found: dict[str, Leader] = {}
    failures = list[TransportError]()
    for server in servers:
        try:
            entries = entries_in((yield server, request))
        except TransportError as error:
            failures.append(error)
            continue
        for group, text in entries.items():
            leader = read_entry(text).leader if group == EVERY_GROUP else read_leader(text)
            if group not in found or leader.term > found[group].term:
                found[group] = leader
    if failures and len(failures) == len(servers):
        raise failures[0]
    return found


def entries_in(reply: Command) -> dict[str, str]:
    """The entries that a name server has."""
    return KVTable.decode(reply.body).table if reply.code == ResponseCode.SUCCESS else {}


class CoordinatorEntry(NamedTuple):
    """The entry of the coordinators of a cluster."""

    name: str
    """Their id, which is in their store."""
    leader: Leader
    limit: int
    """All epochs that were granted are below."""

    def __str__(self) -> str:
        return f"{self.name} {self.leader} {self.limit}"


def read_entry(text: str) -> CoordinatorEntry:
    """Read the entry of a cluster's coordinators."""
    try:
        name, address, term, limit = text.split()
        return CoordinatorEntry(name, Leader(parse_address(address), int(term)), int(limit))
    except ValueError:
        raise RemoteProtocolError(
            f"the name servers have an entry for a coordinator that cannot be read: {text!r}"
        ) from None
