"""The consumers of a front: the groups of its clients, and what becomes of them while it runs and when it stops."""

import asyncio
import contextlib
import logging

from lanemq.clock import Clock
from lanemq.grpc_front.answers import CallFailed
from lanemq.grpc_front.clients import ClientTable, GrpcClient
from lanemq.grpc_front.groups import STOP_SECONDS, FrontGroup, Wanted
from lanemq.grpc_front.handing import Handing
from lanemq.grpc_front.options import FrontOptions
from lanemq.grpc_front.routes import Routes
from lanemq.model.names import check_group
from lanemq.wire.grpc.messages import Code
from lanemq.wire.lane_bodies import FrontClientBody, FrontClientsBody

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
"""How often clients and groups are looked after."""


class Consumers:
    """All groups of a front, each with its member."""

    def __init__(
        self, options: FrontOptions, clients: ClientTable, handing: Handing, routes: Routes, clock: Clock
    ) -> None:
        self.groups: dict[str, FrontGroup] = {}
        self.draining = False
        self.leaving = asyncio.Event()
        """Clients are to go to another front."""
        self._options, self._clients, self._handing, self._routes = options, clients, handing, routes
        self._clock = clock

    # subscriptions

    async def subscribe(self, client: GrpcClient, name: str, tags: dict[str, str], *, all_of_it: bool = False) -> bool:
        """Notes what a consumer subscribes to; returns whether its group consumes in order.

        Nothing is noted of a request that is refused: the member of the group would try it for all clients.
        """
        check_group(name)
        ordered = await self._routes.ordered(tags)
        self._check_tags(client, name, tags)
        if self._clients.known(client.id) is not client:
            raise CallFailed(Code.BAD_REQUEST, f"client {client.id!r} has ended")
        group = self.group(name)
        before = client.tags if client.group == name and not all_of_it else {}
        client.group, client.tags = name, {**before, **tags}
        ordered = ordered or (group.wanted is not None and group.wanted.ordered)
        group.want(Wanted(self._clients.tags_of(name), ordered))
        return ordered

    def _check_tags(self, client: GrpcClient, name: str, tags: dict[str, str]) -> None:
        """Raises `CallFailed` if other clients of the group read a topic with other tags."""
        others = {
            topic: theirs
            for each in self._clients.of_group(name)
            if each is not client
            for topic, theirs in each.tags.items()
        }
        for topic, wanted in tags.items():
            if others.get(topic, wanted) != wanted:
                text = (
                    f"group {name!r} reads topic {topic!r} with tags {others[topic]!r}, and this client asks for "
                    f"{wanted!r}: all members of a group use the same tags"
                )
                raise CallFailed(Code.ILLEGAL_FILTER_EXPRESSION, text)

    def group(self, name: str) -> FrontGroup:
        """The group of this name, which begins with its first client; raises `CallFailed` if there are too many."""
        group = self.groups.get(name)
        if group is None:
            if self.draining:
                raise CallFailed(Code.HA_NOT_AVAILABLE, "this front is stopping: use another one")
            if len(self.groups) >= self._options.max_groups:
                raise CallFailed(Code.TOO_MANY_REQUESTS, f"this front has {self._options.max_groups} groups already")
            group = self.groups[name] = FrontGroup(name, self._options, self._clock, self._handing.serve)
        return group

    # life

    async def run(self) -> None:
        """Looks after clients and groups until it is cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self._look_after_all()
            except Exception:
                log.exception("the front could not look after its clients and groups; it tries again")

    async def _look_after_all(self) -> None:
        for client in self._clients.gone(now=self._clock.now()):
            log.info("client %s is gone", client.name)
        for lost in self._clients.alive.lost_connections(now=self._clock.now()):
            self._handing.connection_lost(*lost)
        self._handing.tidy(self._clients.alive)
        for name, group in [] if self.draining else list(self.groups.items()):
            tags, wanted = self._clients.tags_of(name), group.wanted
            group.want(Wanted(tags, wanted.ordered) if tags and wanted is not None else None)
            group.check()
            if group.member is not None:
                group.member.now_has(self._seen_by_operators(name))
            if group.idle and not tags:
                del self.groups[name]
                await group.close()

    def _seen_by_operators(self, group: str) -> FrontClientsBody:
        """The clients of a group, as its operators see them."""
        out = self._handing.hand_outs
        return FrontClientsBody(
            clients=[
                FrontClientBody(
                    id=each.id,
                    language=each.language.name.lower(),
                    version=each.version,
                    held=sum(len(hand_out.handles) for hand_out in out.of_client(each.id)),
                )
                for each in self._clients.of_group(group)
            ]
        )

    async def drain(self) -> None:
        """Hands nothing out any more and all queues over, and then sends the clients away.

        Each queue leaves as soon as nothing of it is with a client, so another front continues at once. The calls stay
        open until then, because decisions must come to this front.
        """
        self.draining = self._handing.draining = True
        await asyncio.gather(*(self._hand_over(group) for group in self.groups.values()))
        self.leaving.set()
        self._handing.answer_all()

    async def _hand_over(self, group: FrontGroup) -> None:
        """Queues without order have no lease, and do not wait for decisions by themselves."""
        if group.wanted is not None and not group.wanted.ordered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._handing.all_decided(group.name)
        await group.close()
