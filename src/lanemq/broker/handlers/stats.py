"""Figures for operators and tools: queues, rates, the broker itself."""

import logging

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.broker.monitor.figures import Figures
from lanemq.broker.runtime_info import runtime_info
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.core.brokering.traffic import DAY, HOUR, MINUTE, Tally
from lanemq.model.errors import BrokerBusy, BrokerRefused
from lanemq.net.serving.peer import Peer
from lanemq.wire.admin_headers import BrokerStatsHeader, TopicHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import KVTable
from lanemq.wire.stats_bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    TopicOffset,
    TopicStatsTable,
    encode_queue_entry,
)

log = logging.getLogger(__name__)

MAX_READING = 8
"""Requests for runtime info at the same time; further ones are answered "busy"."""


class StatsHandler:
    """Requests 26, 28, 202 and 315."""

    def __init__(self, context: BrokerContext, figures: Figures, answers: LongAnswers) -> None:
        self._context = context
        self._answers = answers
        self._figures = figures
        self._reading = 0
        """Requests for runtime info whose figures are being read."""

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self._topic,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.VIEW_BROKER_STATS_DATA: self._figure,
            RequestCode.GET_BROKER_CONFIG: self._config,
        }

    def _topic(self, peer: Peer, request: Command) -> None:
        topic = self._context.topic_keeper.existing(TopicHeader.from_ext(request.ext).topic)
        self._answers.begin(peer, request, self._topic_steps(topic))

    def _topic_steps(self, topic: TopicConfig) -> Steps:
        entries = []
        for queue in self._context.queues.of_topic(topic.name):
            low, high = self._context.store.bounds(queue.topic, queue.queue_id)
            last = self._context.queue_log.stored_before(queue, high)
            offset = TopicOffset(min_offset=low, max_offset=high, last_update_timestamp=last)
            entries.append(encode_queue_entry(queue, offset))
            yield
        put, _ = self._context.traffic.put_of(topic.name)
        rate = put.last(MINUTE, now=self._context.clock.now()).per_second
        return TopicStatsTable(topic_put_tps=rate, lane_created=topic.created_ms).encode_with(entries)

    def _runtime(self, peer: Peer, request: Command) -> None:
        if self._reading >= MAX_READING:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "the figures are being read for others; try again")
        self._answers.begin(peer, request, self._runtime_steps())

    def _runtime_steps(self) -> Steps:
        self._reading += 1
        try:
            samples = yield from self._figures.steps()
            table = yield from runtime_info(self._context, self._figures.started, samples)
            return KVTable(table=table).encode()
        finally:
            self._reading -= 1

    def _figure(self, peer: Peer, request: Command) -> None:
        header = BrokerStatsHeader.from_ext(request.ext)
        tally, now = self._tally(header.stats_name, header.stats_key), self._context.clock.now()
        if tally is None:
            name, key = header.stats_name, header.stats_key
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        minute, hour, day = (
            BrokerStatsItem(sum=last.total, tps=last.per_second, avgpt=last.average)
            for last in (tally.last(window, now=now) for window in (MINUTE, HOUR, DAY))
        )
        answer(peer, request, {}, BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day).encode())

    def _tally(self, name: str, key: str) -> Tally | None:
        """The figure of this name; None if it, its topic or its cluster does not exist."""
        traffic, (topic, _, group) = self._context.traffic, key.partition("@")
        if key == self._context.options.cluster:
            return {"BROKER_PUT_NUMS": traffic.put, "BROKER_GET_NUMS": traffic.got}.get(name)
        if self._context.topics.get(topic) is None:
            return None
        figures = {
            "TOPIC_PUT_NUMS": traffic.put_of(topic)[0],
            "TOPIC_PUT_SIZE": traffic.put_of(topic)[1],
            "GROUP_GET_NUMS": traffic.got_of(group, topic)[0],
            "GROUP_GET_SIZE": traffic.got_of(group, topic)[1],
            "SNDBCK_PUT_NUMS": traffic.sent_back_of(group, topic),
        }
        return figures.get(name)

    def _config(self, peer: Peer, request: Command) -> None:
        options = self._context.options
        lines = [f"brokerName={options.name}", f"brokerClusterName={options.cluster}", "brokerId=0"]
        shown = options.shown(self._context.in_force)
        lines += [f"lane.{name}={text}" for name, (text, _) in shown.items()]
        lines.append(f"laneSet={','.join(name for name, (_, origin) in shown.items() if origin)}")
        lines += [f"laneFrom.{name}={origin}" for name, (_, origin) in shown.items() if origin]
        if users := self._context.users():
            lines.append(f"laneUsers={users}")
        answer(peer, request, {"version": "{}"}, "\n".join(lines).encode())
