"""Which batch of a queue goes out when.

A batch that is not full waits while an earlier one is under way (as in Nagle's algorithm): it leaves with the next
answer at the latest, and meanwhile it gathers company. Under load batches grow by themselves, without load nothing
waits. What has to be sent again waits for nobody.
"""

from lanemq.client.producer.known_brokers import KnownBrokers
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.requests import Parcel, RequestBuilder, total_size
from lanemq.client.producer.work import EngineLane, SendRequest
from lanemq.clock import Clock
from lanemq.core.sending.batch import SendBatch
from lanemq.model.units import Millis


class SendPump:
    """For all lanes of one producer."""

    def __init__(self, options: ProducerOptions, builder: RequestBuilder, clock: Clock, brokers: KnownBrokers) -> None:
        self._options = options
        self._builder = builder
        self._clock = clock
        self._brokers = brokers

    def take(self, lane: EngineLane) -> list[SendRequest]:
        """What may go out on this lane now."""
        requests: list[SendRequest] = []
        if not self._may_send(lane):
            return requests
        options, now = self._options, self._clock.now()
        while self._may_send(lane):
            batch = lane.sender.take_batch(
                max_count=options.max_batch_messages, max_bytes=options.max_batch_bytes, now=now
            )
            if batch is None:
                break
            requests.append(self._request(lane, batch, now))
            if batch.attempt == 1:
                lane.repeats = False
                lane.recovering = max(0, lane.recovering - len(batch.messages))
                lane.gathered -= len(batch.messages)
                lane.gathered_bytes -= total_size(batch.messages)
            elif lane.repeats:
                lane.repeats = lane.sender.must_repeat
        return requests

    def _may_send(self, lane: EngineLane) -> bool:
        options = self._options
        full = lane.gathered >= options.max_batch_messages or lane.gathered_bytes >= options.max_batch_bytes
        if not full and not lane.repeats and not lane.recovering:
            if lane.linger_until and self._clock.now() >= lane.linger_until:
                lane.linger_until = 0
            if lane.linger_until or lane.under_way or not lane.gathered:
                return False
        return self._brokers[lane.queue.broker].connected

    def _request(self, lane: EngineLane, batch: SendBatch[Parcel], now: Millis) -> SendRequest:
        before = lane.built.get(batch.first_sequence)
        command = before or self._builder.send(
            lane.queue,
            batch.messages,
            epoch=batch.epoch,
            sequence=batch.first_sequence,
            born=self._clock.wall(),
            creates=lane.creates,
        )
        lane.built[batch.first_sequence] = command
        request = lane.under_way[batch.first_sequence] = SendRequest(lane, batch, command, now)
        return request
