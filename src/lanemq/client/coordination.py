"""Where the coordinator of a group is: an entry for each group in the settings of the name servers.

An entry is at every name server, as the layout of an ordered topic is; one that has it is enough. Without an entry the
group is an ordinary one. That a group is coordinated does not depend on the entry alone: its consumption is disabled
at the brokers, so a member that does not know of the coordinator gets no message.

A program, or its environment, may name the coordinator; then the name servers are not asked for it.
"""

import os
from collections.abc import Sequence

from lanemq.client.topics import Steps, read_setting
from lanemq.model.environment import COORDINATOR
from lanemq.model.errors import InvalidOption, RemoteProtocolError, TransportError
from lanemq.net.address import Address, parse_address
from lanemq.wire.admin_headers import KvHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import KVTable

COORDINATOR_NAMESPACE = "LANEMQ_COORDINATOR"
"""The namespace of the settings: the address of the coordinator by group."""
EVERY_GROUP = "*"
"""The entry of the coordinator itself: its id, its address, and a number above all epochs that it has granted. It is
made last: where it is, all others are."""
EPOCH_STEP = 1_000_000
"""The entry is changed after so many epochs."""
COORDINATOR_PORT = 9873


def named_coordinator(given: str | None) -> Address | None:
    """The coordinator that the program or the environment names; None: the name servers say who it is."""
    text = given or os.environ.get(COORDINATOR)
    try:
        return parse_address(text, COORDINATOR_PORT) if text else None
    except InvalidOption as error:
        raise InvalidOption(f"{'coordinator' if given else COORDINATOR}: {error}") from None


def coordinator_of(group: str, servers: Sequence[Address]) -> Steps[Address | None]:
    """The address of the group's coordinator; None if the group has none. Asks every name server before it says so."""
    text = yield from read_setting(COORDINATOR_NAMESPACE, group, servers)
    return parse_address(text) if text else None


def coordinators(servers: Sequence[Address]) -> Steps[dict[str, Address]]:
    """The address of each group's coordinator, and under `EVERY_GROUP` that of the cluster's."""
    request = Command(RequestCode.GET_KVLIST_BY_NAMESPACE, 0, ext=KvHeader(namespace=COORDINATOR_NAMESPACE).to_ext())
    entries = entries_in((yield None, request))
    for server in servers:
        if EVERY_GROUP in entries:
            break
        try:
            entries |= entries_in((yield server, request))
        except TransportError:
            continue
    return {
        group: read_entry(text)[1] if group == EVERY_GROUP else parse_address(text) for group, text in entries.items()
    }


def entries_in(reply: Command) -> dict[str, str]:
    """The entries that a name server has."""
    return KVTable.decode(reply.body).table if reply.code == ResponseCode.SUCCESS else {}


def read_entry(text: str) -> tuple[str, Address]:
    """Id and address of a coordinator's own entry."""
    name, _, rest = text.partition(" ")
    address = rest.partition(" ")[0]
    if not address:
        raise RemoteProtocolError(f"the name servers have an entry for a coordinator that cannot be read: {text!r}")
    return name, parse_address(address)


def epochs_below(text: str) -> int:
    """A number above all epochs that the coordinator of an entry has granted; 0 if the entry has none."""
    last = text.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


def entry_text(name: str, address: Address, highest: int) -> str:
    """`highest` is the highest epoch that was granted. Others follow before the entry is changed, so it names a number
    that is a whole step above it."""
    return f"{name} {address} {(highest // EPOCH_STEP + 2) * EPOCH_STEP}"
