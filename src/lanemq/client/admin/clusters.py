"""Whether the servers of one list belong to one cluster.

Clients ask the servers of a list in turn and take the first answer, so all of them must know the same brokers. If they
do not, whatever is read from the first looks complete.
"""

import contextlib

from lanemq.client.security import security_of
from lanemq.client.topics import read_masters
from lanemq.model.errors import LaneError
from lanemq.net.address import Servers, parse_addresses
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command

TIMEOUT = 1.0
"""Seconds for each server. One that does not answer in time is left out."""


def other_clusters(servers: Servers) -> str:
    """Names the servers that share no broker with the first one that answers, as a sentence; empty if there are none.

    Asks nothing if there is one server.
    """
    addresses = parse_addresses(servers)
    if len(addresses) < 2:
        return ""
    security, brokers = security_of(), dict[str, set[str]]()
    for address in addresses:
        try:
            with contextlib.closing(BlockingConnection(address, security=security)) as link:
                masters = read_masters(link.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0), TIMEOUT))
        except LaneError:
            continue
        brokers[str(address)] = {f"{name} {at}" for name, (at, _) in masters.items()}
    if not brokers:
        return ""
    (first, known), *rest = brokers.items()
    others = [address for address, names in rest if names and known and not names & known]
    if not others:
        return ""
    return (
        f"{', '.join(others)} and {first} are separate clusters, and only {first} is shown: give the servers of one "
        f"cluster"
    )
