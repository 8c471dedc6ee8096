"""What the name servers know of the coordinators of their cluster: who leads, and below which limit epochs are granted.

The limit is the floor outside the store: a store that goes back to an earlier state would issue an epoch twice.
"""

import asyncio
from typing import NamedTuple

from lanemq.client.coordination import EVERY_GROUP, CoordinatorEntry, read_entry
from lanemq.coordinator.cluster import ClusterLink
from lanemq.model.errors import LaneError, RequestTimedOut, TransportError, UsageError
from lanemq.net.address import Address

ANSWER_SECONDS = 1.0
"""How long a name server is waited for. Long: a frozen one delays the start of a new leader."""


class OtherCoordinator(LaneError):
    """A coordinator with another store is registered for the cluster."""


class KnownEntries(NamedTuple):
    """The entries of all name servers that answered."""

    entries: tuple[CoordinatorEntry, ...]
    silent: tuple[Address, ...]
    """Name servers that did not answer."""

    @property
    def limit(self) -> int:
        """Every epoch that was granted is below."""
        return max((each.limit for each in self.entries), default=0)

    @property
    def term(self) -> int:
        return max((each.leader.term for each in self.entries), default=0)


async def known_entries(link: ClusterLink) -> KnownEntries:
    """Ask all name servers; raises if none answers."""
    asked = (_settings(link, server) for server in link.servers)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    entries, silent, failure = list[CoordinatorEntry](), list[Address](), None
    for server, settings in zip(link.servers, answers, strict=True):
        if isinstance(settings, TransportError):
            silent.append(server)
            failure = settings
        elif isinstance(settings, BaseException):
            raise settings
        elif text := settings.get(EVERY_GROUP):
            entries.append(read_entry(text))
    if failure is not None and len(silent) == len(link.servers):
        raise failure
    return KnownEntries(tuple(entries), tuple(silent))


async def _settings(link: ClusterLink, server: Address) -> dict[str, str]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await link.settings(server)
    except TimeoutError:
        raise RequestTimedOut(f"{server} did not answer within {ANSWER_SECONDS:g} s") from None


def refuse_silent(known: KnownEntries) -> None:
    """Raise if a name server did not answer. Only a shared store shows which other coordinators there are."""
    if known.silent:
        raise UsageError(
            f"name server {known.silent[0]} does not answer, and may know another coordinator: start again when it "
            f"does, or without it in --cluster if it is gone for good"
        )


def refuse_other(name: str, entry: CoordinatorEntry | None) -> None:
    """Raise if an entry is of coordinators with another store than this one."""
    if entry is not None and entry.name != name:
        raise OtherCoordinator(
            f"the cluster has the coordinator {entry.name} at {entry.leader.address}, and a cluster has one state: "
            f"this one was started with another data folder or database. Start it with that of {entry.name}, or, "
            f"if that is lost for good, with --replace"
        )
