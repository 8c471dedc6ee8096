"""Where the coordinator of a group is: an entry for each group in the settings of the name servers.

An entry is at every name server, as the layout of an ordered topic is; one that has it is enough. Without an entry the
group is an ordinary one. That a group is coordinated does not depend on the entry alone: its consumption is disabled
at the brokers, so a member that does not know of the coordinator gets no message.
"""

from collections.abc import Sequence

from lanemq.client.topics import Steps, read_setting
from lanemq.model.errors import RemoteProtocolError
from lanemq.net.address import Address, parse_address

COORDINATOR_NAMESPACE = "LANEMQ_COORDINATOR"
"""The namespace of the settings: the address of the coordinator by group."""
EVERY_GROUP = "*"
"""The entry of the coordinator itself: its id and its address."""


def coordinator_of(group: str, servers: Sequence[Address]) -> Steps[Address | None]:
    """The address of the group's coordinator; None if the group has none. Asks every name server before it says so."""
    text = yield from read_setting(COORDINATOR_NAMESPACE, group, servers)
    return parse_address(text) if text else None


def coordinator_of_cluster(servers: Sequence[Address]) -> Steps[tuple[str, Address] | None]:
    """The id and the address of the cluster's coordinator; None if it has none."""
    text = yield from read_setting(COORDINATOR_NAMESPACE, EVERY_GROUP, servers)
    return read_entry(text) if text else None


def read_entry(text: str) -> tuple[str, Address]:
    """Id and address of a coordinator's own entry."""
    name, _, address = text.partition(" ")
    if not address:
        raise RemoteProtocolError(f"the name servers have an entry for a coordinator that cannot be read: {text!r}")
    return name, parse_address(address)


def entry_text(name: str, address: Address) -> str:
    return f"{name} {address}"
