"""Sends messages back to the broker: for another attempt later, or to the group's dead letters.

The message must not be lost on the way: unless the broker confirms that it is stored, the caller keeps it. The copy has
everything of the original except the producer stamp, by which the broker would take it for a repeat.
"""

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import delay_level
from lanemq.model.errors import LaneError
from lanemq.model.names import DEFAULT_TOPIC, INNER_PRODUCER_GROUP, retry_topic
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import STORED_CODES, RequestCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.headers import SendBackHeader, SendHeader
from lanemq.wire.properties import LANE_STAMP, LANE_WHY, PropertyName, encode_properties
from lanemq.wire.record import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK

log = ClientLog(__name__)

SEND_BACK_SECONDS = 5.0
"""RocketMQ's timeout for CONSUMER_SEND_MSG_BACK (DefaultMQPushConsumerImpl)."""

STRAIGHT_TO_DEAD_LETTERS = -1
"""A delay level of CONSUMER_SEND_MSG_BACK."""

MAX_RECONSUME = 16
"""RocketMQ's default number of attempts (SubscriptionGroupConfig.retryMaxTimes)."""

_MAX_WHY_CHARS = 500

_NOT_COPIED = frozenset(
    {
        LANE_STAMP,
        PropertyName.TRANSACTION,
        PropertyName.DELAY,
        PropertyName.RECONSUME_TIMES,
        PropertyName.MAX_RECONSUME_TIMES,
    }
)
_NOT_COPIED_BITS = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_MASK


class DeadLetterSender:
    """Sends messages back. Each call returns whether the broker has stored the message."""

    def __init__(self, options: ConsumerOptions, calls: ConsumerCalls) -> None:
        self._group = options.group
        self._delayed = options.compat == "rocketmq"
        self._clock = options.clock
        self._rate_limited = RateLimitedLog(log, options.clock)
        self._calls = calls

    async def dead_letter(self, message: Message, why: str) -> bool:
        """Makes a message a dead letter.

        It goes through the retry topic with its attempts used up, as RocketMQ's orderly consumer sends it
        (ConsumeMessageOrderlyService.sendMessageBack); every broker version then diverts it to the dead letters.
        """
        times = message.reconsume_times
        # A delay only makes the dead letter appear late, but RocketMQ's own client sets one.
        level = delay_level(times) if self._delayed else 0
        command = self._copy(message, times=times + 1, max_retries=times, level=level, why=why)
        if not await self._sent(message, command):
            return False
        log.warning("%s is a dead letter of group %s now: %s", message, self._group, why or "no reason given")
        return True

    async def send_back(self, message: Message, level: int = 0, max_retries: int = MAX_RECONSUME) -> bool:
        """Sends a message back for another attempt, at a delay level or when the broker chooses (0).

        If the broker cannot find the original, sends a copy, as RocketMQ's client does.
        """
        command = self._send_back_request(message, level, max_retries)
        try:
            await self._ask(message, command)
        except LaneError as error:
            self._rate_limited.failed(str(message), f"{message} could not be sent back, sending a copy", error)
        else:
            return True
        times = message.reconsume_times
        if level == STRAIGHT_TO_DEAD_LETTERS or times >= max_retries:
            copy = self._copy(message, times=times + 1, max_retries=times, level=0, why="")
        else:
            level = level or delay_level(times)
            copy = self._copy(message, times=times + 1, max_retries=max_retries, level=level, why="")
        return await self._sent(message, copy)

    async def pass_on(self, message: Message, max_retries: int = MAX_RECONSUME) -> bool:
        """Returns a message of a retry topic for another member, because this one has no handler for its topic.

        A LaneMQ broker counts no attempt; any other broker takes it for a failed one.
        """
        queue = message.queue
        is_lanemq = self._calls.is_lanemq(queue.topic, queue.broker)
        command = self._send_back_request(message, 0, max_retries, pass_on=True if is_lanemq else None)
        try:
            await self._ask(message, command)
        except LaneError as error:
            text = f"{message} could not be passed on to another member and stays here"
            self._rate_limited.failed(str(message), text, error)
            return False
        return True

    def _send_back_request(
        self, message: Message, level: int, max_retries: int, *, pass_on: bool | None = None
    ) -> Command:
        header = SendBackHeader(
            offset=message.record.position,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.queue.topic,
            max_reconsume_times=max_retries,
            broker_name=message.queue.broker,
            lane_pass_on=pass_on,
        )
        return Command(RequestCode.CONSUMER_SEND_MSG_BACK, 0, ext=header.to_ext())

    async def _ask(self, message: Message, command: Command) -> None:
        """Sends a request to the message's broker; raises if it is refused, or has no master."""
        address = self._calls.master(message.queue.topic, message.queue.broker)
        await self._calls.ask(address, command, SEND_BACK_SECONDS)

    async def _sent(self, message: Message, command: Command) -> bool:
        try:
            address = self._calls.master(message.queue.topic, message.queue.broker)
            reply = await self._calls.post(address, command, SEND_BACK_SECONDS)
            if reply.code in STORED_CODES:
                return True
            raise error_for(reply.code, reply.remark)
        except LaneError as error:
            text = f"{message} could not be sent to the broker and stays here"
            self._rate_limited.failed(str(message), text, error)
            return False

    def _copy(self, message: Message, *, times: int, max_retries: int, level: int, why: str) -> Command:
        record = message.record
        properties = {name: value for name, value in record.properties.items() if name not in _NOT_COPIED}
        properties.setdefault(PropertyName.ORIGIN_ID, message.message_id)
        properties[PropertyName.RETRY_TOPIC] = message.topic
        if level:
            properties[PropertyName.DELAY] = str(level)
        if why:
            properties[LANE_WHY] = _one_line(why)
        header = SendHeader(
            producer_group=INNER_PRODUCER_GROUP,
            topic=retry_topic(self._group),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=record.sys_flag & ~_NOT_COPIED_BITS,
            born_timestamp=self._clock.wall(),
            flag=record.flag,
            properties=encode_properties(properties),
            reconsume_times=times,
            max_reconsume_times=max_retries,
            broker_name=message.queue.broker,
        )
        return Command(RequestCode.SEND_MESSAGE_V2, 0, ext=header.to_ext_v2(), body=message.stored_body)


def _one_line(why: str) -> str:
    """The reason as a property value: short, and without separators."""
    return " ".join(why.replace("\x01", " ").replace("\x02", " ").split())[:_MAX_WHY_CHARS] or "?"
