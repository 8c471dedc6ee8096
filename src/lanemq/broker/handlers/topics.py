"""Creating, changing, describing and deleting topics.

When a topic is deleted, its leases end and its held pulls are answered before a new topic of that name can exist.
Otherwise a consumer would continue in the new topic at its offset in the old one, and skip everything before.
"""

from collections.abc import Callable
from functools import partial

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer, answer_saved
from lanemq.broker.group_rules import free_leases, free_progress
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.core.brokering.quotas import Quota
from lanemq.core.brokering.topic_table import Permission, TopicConfig, TopicOrder
from lanemq.model.errors import DiskFull, LaneError, StorageError
from lanemq.model.names import check_topic
from lanemq.net.serving.peer import Peer
from lanemq.wire import route_bodies
from lanemq.wire.admin_headers import CreateTopicHeader, DeleteTopicHeader, TopicHeader
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import FIFO_TOPIC, GLOBAL_ORDER


class TopicHandler:
    """Requests 17, 21, 215, 216, 351."""

    def __init__(self, context: BrokerContext, deleted: Callable[[str], None], answers: LongAnswers) -> None:
        """`deleted` is called with the name of every deleted topic."""
        self._context = context
        self._answers = answers
        self._deleted = deleted

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all,
            RequestCode.GET_TOPIC_CONFIG: self._describe,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_route,
        }

    def _create(self, peer: Peer, request: Command) -> None:
        header = CreateTopicHeader.from_ext(request.ext)
        self._context.group_commit.refuse_sends()
        attributes = (header.attributes or "").split(",")
        order = TopicOrder.BY_KEY if header.order or FIFO_TOPIC in attributes else TopicOrder.NONE
        if GLOBAL_ORDER in attributes:
            order = TopicOrder.GLOBAL
        wanted = TopicConfig(
            check_topic(header.topic),
            header.read_queue_nums,
            header.write_queue_nums,
            Permission(header.perm & 7),
            order,
            header.topic_sys_flag or 0,
        )
        charges = self._context.charges
        charges.take(Quota.ROWS, peer, request)
        try:
            charges.create_topic(peer, request, wanted.name, wanted.queues)
            self._context.topic_keeper.take(self._context.topics.put(wanted))
        except LaneError:
            charges.give_back(Quota.ROWS, peer)
            charges.shrink(Quota.QUEUES, (wanted.name,))
            raise
        self._context.topic_keeper.when_saved(wanted.name, partial(self._created, peer, request))

    def _created(self, peer: Peer, request: Command, error: StorageError | None) -> None:
        self._context.charges.give_back(Quota.ROWS, peer)
        answer_saved(peer, request, error or self._context.group_commit.failure)

    def _all(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._all_steps())

    def _all_steps(self) -> Steps:
        table: dict[str, route_bodies.TopicConfigBody] = {}
        for topic in tuple(self._context.topics.topics()):
            table[topic.name] = _describe(topic)
            yield
        return route_bodies.TopicConfigTable(topic_config_table=table).encode()

    def _describe(self, peer: Peer, request: Command) -> None:
        topic = self._context.topic_keeper.existing(TopicHeader.from_ext(request.ext).topic)
        answer(peer, request, {}, _describe(topic).encode())

    def _delete(self, peer: Peer, request: Command) -> None:
        name = DeleteTopicHeader.from_ext(request.ext).topic
        context = self._context
        context.group_commit.refuse_if_failed()
        context.charges.take(Quota.ROWS, peer, request)
        if context.topics.get(name) is None:
            again = partial(self._answer_deleted, peer, request, name)
            if context.topic_keeper.repeat_deletion(name, again):
                return
        try:
            context.topic_keeper.delete(name)
        except LaneError:
            context.charges.give_back(Quota.ROWS, peer)
            raise
        context.charges.shrink(Quota.QUEUES, (name,))
        position = context.store.drop_topic(name)
        context.producers.forget_topic(name)
        context.members.forget_topic(name)
        context.saved_filters.save()  # before the rows of the topic
        context.traffic.forget_topic(name)
        free_progress(context, context.progress_keeper.forget_topic(name))
        floor = free_leases(context, context.locks.forget_topic(name))

        def forget() -> None:
            # After a checkpoint that may be in progress, which could write rows of the topic again.
            context.state.drop_topic(name, position)
            context.state.forget_leases(name, floor)

        def forgotten(error: StorageError | None) -> None:
            if error is None and context.recording.on:
                context.recording.deleted(name)  # not earlier: a crash would bring the topic back, with its messages
            if error is None:
                context.progress_keeper.settled(partial(self._answer_deleted, peer, request, name))
            else:
                self._answer_deleted(peer, request, name, error)

        context.topic_keeper.forget(name, forget, forgotten)
        self._deleted(name)

    def _answer_deleted(self, peer: Peer, request: Command, name: str, error: StorageError | None) -> None:
        self._context.charges.give_back(Quota.ROWS, peer)
        if isinstance(error, DiskFull):
            error = DiskFull(
                f"topic {name} is deleted, but not on disk yet: {error}. The broker frees log files that hold nothing "
                f"else, and repeats the deletion until it is on disk; a restart before that brings the topic back"
            )
        answer_saved(peer, request, error)

    def _delete_route(self, peer: Peer, request: Command) -> None:
        """Does nothing: RocketMQ's tools delete topic and route separately, but here the route goes with the topic."""
        DeleteTopicHeader.from_ext(request.ext)
        answer(peer, request)


_GLOBAL = {"lane.order": "global"}
"""`GLOBAL_ORDER` as an attribute of the topic."""


def _describe(topic: TopicConfig) -> route_bodies.TopicConfigBody:
    return route_bodies.TopicConfigBody(
        topic_name=topic.name,
        read_queue_nums=topic.read_queues,
        write_queue_nums=topic.write_queues,
        attributes=dict(_GLOBAL) if topic.order is TopicOrder.GLOBAL else {},
        perm=int(topic.permission),
        order=topic.ordered,
        topic_sys_flag=topic.sys_flag,
    )
