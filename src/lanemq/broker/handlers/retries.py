"""Messages that a consumer sends back: to its retry topic for another attempt, or to its dead letters."""

import re
from functools import partial

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer_saved
from lanemq.broker.group_rules import max_retries
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.broker.storage.delays import SendRoute, route_delayed
from lanemq.core.brokering.delay import RouteToDeadLetter, level_for_pass, route_send_back
from lanemq.log.appender import NewRecord
from lanemq.model.errors import BrokerRefused, CorruptRecord
from lanemq.model.names import SCHEDULE_TOPIC, check_group
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import SendBackHeader
from lanemq.wire.properties import (
    LANE_PASSED,
    LANE_STAMP,
    PropertyName,
    decode_properties,
    encode_properties,
    find_property,
    tag_code_of,
)
from lanemq.wire.record import RecordView, encode_offset_id, pack_host

_COUNT = re.compile("[0-9]{1,9}")


class RetryHandler:
    """Request 36."""

    def __init__(self, context: BrokerContext, answers: LongAnswers) -> None:
        self._context = context
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def _send_back(self, peer: Peer, request: Command) -> None:
        header = SendBackHeader.from_ext(request.ext)
        group = check_group(header.group)
        self._context.group_commit.refuse_sends()
        self._answers.begin(peer, request, self._steps(peer, request, header, group), in_order=True)

    def _steps(self, peer: Peer, request: Command, header: SendBackHeader, group: str) -> Steps:
        """Read the message, then store its copy: each takes some milliseconds if it is a large one."""
        try:
            record = RecordView(self._context.store.read_at(header.offset))
        except CorruptRecord as error:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}") from error
        yield
        self._context.charges.use_groups(peer, request, (group,))
        properties = self._properties(header, record)
        if header.lane_pass_on:
            times, target = record.reconsume_times, self._next_queue(group, properties, record)
        else:
            limit = max_retries(self._context, group, header.max_reconsume_times)
            route = route_send_back(record.reconsume_times, header.delay_level, limit)
            level = None if isinstance(route, RouteToDeadLetter) else route.level
            times, target = route.reconsume_times, self._target(group, properties, level)
        item = _copy(record, target.properties, times)
        size = len(item.body) + len(item.properties) + 128
        host, done = pack_host(*peer.remote), partial(answer_saved, peer, request)
        if target.topic == SCHEDULE_TOPIC:
            self._context.delay_delivery.append(target.queue_id, [item], host, size, done)
        else:
            self._context.group_commit.append(target.topic, target.queue_id, [item], host, size, done)
        if not header.lane_pass_on:
            self._context.traffic.sent_back(group, properties[PropertyName.RETRY_TOPIC], now=self._context.clock.now())
        return None

    def _properties(self, header: SendBackHeader, record: RecordView) -> dict[str, str]:
        properties = decode_properties(record.properties_text)
        properties.setdefault(PropertyName.RETRY_TOPIC, record.topic)
        origin = properties.get(PropertyName.UNIQUE_ID) or encode_offset_id(*self._context.advertised, header.offset)
        properties.setdefault(PropertyName.ORIGIN_ID, header.origin_msg_id or origin)
        properties[PropertyName.WAIT] = "false"
        for name in (PropertyName.DELAY, PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE, LANE_STAMP, LANE_PASSED):
            properties.pop(name, None)
        return properties

    def _next_queue(self, group: str, properties: dict[str, str], record: RecordView) -> SendRoute:
        """The next queue of the retry topic, for a message that its reader has no handler for."""
        retry = self._context.topic_keeper.take(self._context.topics.ensure_retry(group))
        text = find_property(record.properties_text, LANE_PASSED) or ""
        passed = int(text) if _COUNT.fullmatch(text) else 0
        properties[LANE_PASSED] = str(passed + 1)
        properties[PropertyName.DELAY] = str(level_for_pass(passed, retry.write_queues))
        here = record.queue_id if record.topic == retry.name else -1
        return route_delayed(retry.name, (here + 1) % retry.write_queues, encode_properties(properties))

    def _target(self, group: str, properties: dict[str, str], level: int | None) -> SendRoute:
        topics, keeper = self._context.topics, self._context.topic_keeper
        if level is None:
            dead = keeper.take(topics.ensure_dead_letter(group))
            return SendRoute(dead.name, 0, encode_properties(properties), 0)
        retry = keeper.take(topics.ensure_retry(group))
        properties[PropertyName.DELAY] = str(level)
        return route_delayed(retry.name, 0, encode_properties(properties))


def _copy(record: RecordView, properties: str, reconsume_times: int) -> NewRecord:
    return NewRecord(
        record.body,
        properties.encode(),
        tag_code_of(properties),
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        reconsume_times,
    )
