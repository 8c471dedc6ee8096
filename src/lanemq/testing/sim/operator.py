"""The simulated operator: creates and deletes topics, lists, redrives and discards parked lanes, resets groups.

A request may get no answer, because the broker is down or the path to it is blocked.
"""

from lanemq.model.errors import LaneError
from lanemq.net.calling.connection import open_connection
from lanemq.testing.sim.world import ADDRESS, World
from lanemq.wire.admin_headers import CreateTopicHeader, DeleteTopicHeader, ResetOffsetHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import Header
from lanemq.wire.lane_bodies import LaneBody, ParkedLaneBody, ParkedTable

ANSWER_SECONDS = 5.0


class Operator:
    """A process that sends one request at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._host = world.new_host("operator")

    async def create(self, topic: str, queues: int) -> bool:
        header = CreateTopicHeader(topic=topic, read_queue_nums=queues, write_queue_nums=queues, order=True)
        return await self._succeeds(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete(self, topic: str) -> bool:
        return await self._succeeds(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader(topic=topic))

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> bool:
        header = ResetOffsetHeader(topic=topic, group=group, timestamp=-1, queue_id=queue, offset=offset)
        return await self._succeeds(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    async def parked(self) -> list[ParkedLaneBody]:
        """All parked lanes; empty if the broker does not answer."""
        reply = await self._ask(Command(RequestCode.LANE_PARKED, 0, body=LaneBody().encode()))
        return [] if reply is None or reply.code else ParkedTable.decode(reply.body).lanes

    async def redrive(self, lane: ParkedLaneBody) -> bool:
        return await self._ask_about_lane(RequestCode.LANE_PARKED_REDRIVE, lane)

    async def discard(self, lane: ParkedLaneBody) -> bool:
        """Discards the first message of a lane."""
        return await self._ask_about_lane(RequestCode.LANE_PARKED_DISCARD, lane, lane.first)

    async def _ask_about_lane(self, code: RequestCode, lane: ParkedLaneBody, through: int = -1) -> bool:
        body = LaneBody(
            group=lane.group,
            topic=lane.topic,
            broker=lane.broker,
            queue_id=lane.queue_id,
            any_key=False,
            key=lane.key,
            through=through,
        )
        reply = await self._ask(Command(code, 0, body=body.encode()))
        return reply is not None and reply.code == ResponseCode.SUCCESS

    async def _succeeds(self, code: RequestCode, header: Header) -> bool:
        reply = await self._ask(Command(code, 0, ext=header.to_ext()))
        return reply is not None and reply.code == ResponseCode.SUCCESS

    async def _ask(self, command: Command) -> Command | None:
        reply: Command | None = await self._host.run(self._asked(command))
        return reply

    async def _asked(self, command: Command) -> Command | None:
        try:
            connection = await open_connection(ADDRESS)
        except LaneError:
            return None
        try:
            return await connection.request(command, ANSWER_SECONDS)
        except LaneError as error:
            self._world.trace.note("operator", f"got no answer: {type(error).__name__}")
            return None
        finally:
            connection.close()
