"""Moves a group from the brokers to the coordinator, and back.

A move that fails half-way is repeated; until then no member gets messages of the group, or, on the way out, none where
a broker has not answered.

In: consumption of the group is disabled at every master → offsets are read → they are on disk here with the group → its
entry is at all name servers. Out: offsets are written at the brokers → the entry is deleted at all name servers → the
group is forgotten here → consumption is enabled.
"""

import asyncio
from collections.abc import Mapping

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler
from lanemq.broker.group_rules import free_leases, free_progress
from lanemq.coordinator.background_answers import BackgroundAnswers
from lanemq.coordinator.cluster import CONSUME_ENABLE, ClusterLink, masters_in, replicas_in, settings_of
from lanemq.coordinator.queues import ClusterQueues
from lanemq.coordinator.watch import ClusterWatch
from lanemq.core.brokering.progress_store import ProgressChange, SavedOffset
from lanemq.core.finished_ranges import count_finished
from lanemq.model.errors import BrokerBusy, BrokerRefused
from lanemq.model.names import PULL_GROUP_PREFIX, check_group, pull_group
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.model.wording import plural
from lanemq.net.address import Address
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import CoordinateAnswer, CoordinateBody, CoordinatedQueue
from lanemq.wire.route_bodies import SubscriptionGroupConfig

REPLICA_SECONDS = 30.0
"""How long a move waits until replicas have the disabled group: they copy groups from their master every 10 s."""
REPLICA_PAUSE = 0.5


class MoveHandler:
    """Request 4210. One move at a time."""

    def __init__(
        self,
        context: GroupContext,
        link: ClusterLink,
        queues: ClusterQueues,
        watch: ClusterWatch,
        answers: BackgroundAnswers,
    ) -> None:
        self._context = context
        self._link = link
        self._queues = queues
        self._watch = watch
        self._moving = asyncio.Lock()
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LANE_COORDINATE: self._move}

    def _move(self, peer: Peer, request: Command) -> None:
        body = CoordinateBody.of_request(request.body)
        check_group(body.group)
        if body.group.startswith(PULL_GROUP_PREFIX):
            raise BrokerRefused(ResponseCode.INVALID_PARAMETER, f"{body.group} is the name of another group's pulls")
        if self._moving.locked():
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "another group is being moved; ask again when that is done")
        self._answers.begin(peer, request, self._moved(body))

    async def _moved(self, body: CoordinateBody) -> CoordinateAnswer:
        async with self._moving:
            if body.confirm:
                return await self._confirm(body)
            return await (self._out(body) if body.out else self._in(body))

    async def _confirm(self, body: CoordinateBody) -> CoordinateAnswer:
        """Name the new queues of a group's topics, and confirm them."""
        self._context.admit(body.group)
        new = self._watch.unconfirmed(body.group)
        if body.apply:
            await self._watch.confirm(new)
        return CoordinateAnswer(queues=[_queue(queue, 0) for queue in new])

    # in

    async def _in(self, body: CoordinateBody) -> CoordinateAnswer:
        group, info = body.group, await self._link.info()
        masters = masters_in(info)
        problems = [] if group in self._context.groups else await self._problems_in(group, masters)
        if away := sorted(info.broker_addr_table.keys() - masters.keys()):
            problems.append(f"broker {', '.join(away)} has no master now, so the group cannot be disabled there")
        if not body.apply or problems or group in self._context.groups:
            offsets = await self._offsets_at(group, masters)
            return CoordinateAnswer(queues=_queues(offsets), problems=problems, moved=group in self._context.groups)
        settings = {}
        for master in masters.values():
            settings = settings_of(await self._link.group_settings(master), group)
            await self._link.create_pull_group(master, group)
            await self._link.set_consumption(master, settings, enabled=False)
        await self._wait_for_replicas(group, [each for some in replicas_in(info).values() for each in some])
        # Read after that: no member can have moved them since.
        offsets = await self._offsets_at(group, masters)
        await self._save(SubscriptionGroupConfig(group_name=group, retry_max_times=_retries(settings)), offsets)
        await self._link.put(group, str(self._watch.leader), self._link.servers)
        self._queues.changed.set()
        return CoordinateAnswer(queues=_queues(offsets), moved=True)

    async def _problems_in(self, group: str, masters: Mapping[str, Address]) -> list[str]:
        problems = []
        for name, master in masters.items():
            if members := await self._link.online(master, group):
                problems.append(f"{plural(len(members), 'member')} at {name}: {', '.join(members)}; stop them first")
        return problems

    async def _wait_for_replicas(self, group: str, replicas: list[Address]) -> None:
        """Wait until a replica that becomes the master would refuse the group too."""
        deadline = asyncio.get_running_loop().time() + REPLICA_SECONDS
        for replica in replicas:
            while settings_of(await self._link.group_settings(replica), group).get(CONSUME_ENABLE, True):
                if asyncio.get_running_loop().time() > deadline:
                    raise BrokerBusy(
                        ResponseCode.SYSTEM_BUSY,
                        f"group {group} is disabled at the masters, but not at the replica {replica} yet; run the "
                        f"command again. Until then no member gets messages of the group",
                    )
                await asyncio.sleep(REPLICA_PAUSE)

    async def _offsets_at(self, group: str, masters: Mapping[str, Address]) -> dict[MessageQueue, QueueOffset]:
        if group in self._context.groups:
            return {each.queue: each.offset or QueueOffset(0) for each in self._context.progress.of_group(group)}
        offsets: dict[MessageQueue, QueueOffset] = {}
        for master in masters.values():
            offsets |= await self._link.offsets(master, group)
        return offsets

    async def _save(self, settings: SubscriptionGroupConfig, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Put the group and its offsets on disk, then serve it."""
        context, group = self._context, settings.group_name
        for queue, offset in offsets.items():
            context.progress.at(group, queue).move(offset, pending=False)
        rows: list[ProgressChange] = [SavedOffset(group, queue, offset) for queue, offset in offsets.items()]
        await context.progress_keeper.saved(rows)
        text, state = settings.encode().decode(), context.state
        await context.row_thread.call(lambda: state.save_group(group, text))
        context.groups[group] = settings

    # out

    async def _out(self, body: CoordinateBody) -> CoordinateAnswer:
        group, context = body.group, self._context
        masters = masters_in(await self._link.info())
        if group not in context.groups:
            return await self._rest_of_out(body, masters)
        places = list(context.progress.of_group(group))
        queues = [_queue(each.queue, each.offset or 0, count_finished(each.finished)) for each in places]
        problems = self._problems_out(group)
        if away := sorted({each.queue.broker for each in places} - masters.keys()):
            problems.append(f"broker {', '.join(away)} has no master now, so the offsets cannot be written there")
        if not body.apply or problems:
            return CoordinateAnswer(queues=queues, problems=problems)
        for each in places:
            await self._link.commit(masters[each.queue.broker], group, each.queue, each.offset or 0)
        await self._delete_entry(group)
        self._watch.forget(group)
        await self._watch.copies.forget(group)
        # Before a broker lets members pull: a coordinator that still has the group would disable it, at old offsets.
        await self._forget(group)
        for name, master in masters.items():
            here = [each.queue for each in places if each.queue.broker == name]
            await self._link.unlock(master, group, self._watch.client_id, here)
            await self._enable(group, master)
        return CoordinateAnswer(queues=queues, moved=True)

    async def _rest_of_out(self, body: CoordinateBody, masters: Mapping[str, Address]) -> CoordinateAnswer:
        """Enable a group that has left, where a broker did not answer then."""
        group, left = body.group, list[Address]()
        for master in masters.values():
            table = await self._link.group_settings(master)
            if pull_group(group) in table and not settings_of(table, group).get(CONSUME_ENABLE, True):
                left.append(master)
        if not left:
            return CoordinateAnswer(problems=[f"group {group} is not coordinated"])
        for master in left if body.apply else ():
            await self._enable(group, master)
        return CoordinateAnswer(moved=body.apply)

    async def _enable(self, group: str, master: Address) -> None:
        settings = settings_of(await self._link.group_settings(master), group)
        await self._link.set_consumption(master, settings, enabled=True)

    async def _delete_entry(self, group: str) -> None:
        """Delete a group's entry at all name servers; from then on it is not served here."""
        settings = self._context.groups.pop(group)  # before that: the watch enters the groups that are served
        try:
            missed = await self._link.delete(group)
        except BaseException:
            self._context.groups[group] = settings
            raise
        if missed:
            self._context.groups[group] = settings
            raise BrokerBusy(
                ResponseCode.SYSTEM_BUSY,
                f"name server {', '.join(map(str, missed))} could not be asked, and would still send members to the "
                f"coordinator: run the command again when it answers",
            )

    def _problems_out(self, group: str) -> list[str]:
        context = self._context
        problems = []
        if members := context.members.members(group):
            problems.append(f"{plural(len(members), 'member')}: {', '.join(members)}; stop them first")
        lanes = [lane for each in context.progress.parked() if each.group == group for lane in each.lanes.values()]
        if lanes:
            problems.append(
                f"{plural(len(lanes), 'lane')} parked or held, which the brokers cannot keep: redrive or discard them "
                f"first, see lanemq parked list --group {group}"
            )
        return problems

    async def _forget(self, group: str) -> None:
        context, state = self._context, self._context.state
        context.charges.forget_group(group)
        context.members.forget(group)
        context.saved_filters.save()
        free_progress(context, context.progress_keeper.forget_group(group))
        floor = free_leases(context, context.locks.forget_group(group))

        def delete() -> None:
            state.delete_group(group)
            state.forget_group_leases(group, floor)

        await context.row_thread.call(delete)
        await context.progress_keeper.saved(())


def _queues(offsets: Mapping[MessageQueue, QueueOffset]) -> list[CoordinatedQueue]:
    return [_queue(queue, offset) for queue, offset in sorted(offsets.items())]


def _retries(settings: Mapping[str, object]) -> int:
    """What a coordinator reads of a group's settings."""
    times = settings.get("retryMaxTimes")
    return times if isinstance(times, int) else SubscriptionGroupConfig().retry_max_times


def _queue(queue: MessageQueue, offset: int, finished: int = 0) -> CoordinatedQueue:
    topic, broker, queue_id = queue
    return CoordinatedQueue(topic=topic, broker=broker, queue_id=queue_id, offset=offset, finished=finished)
