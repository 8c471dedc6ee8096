"""Asking a queue's owner about one lane, by way of the broker.

The rule guarded here: a member that is stuck, frozen or no LaneMQ member must not make the asker wait. Whoever wants
to know why a key does not move gets what is known after 50 ms, and a sentence about what is not.
"""

from dataclasses import dataclass
from typing import Final, Unpack

from lanemq.client.admin.calls import AdminCalls
from lanemq.client.security import SecuritySettings, security_of
from lanemq.model.errors import LaneError, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.net.blocking import BlockingConnection
from lanemq.wire.admin_headers import RunningInfoHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_state_bodies import LaneStateAnswer, LaneStateBody

PATIENCE_SECONDS: Final = 0.05
"""For the owner's answer. Less takes a busy member for a dead one; more is felt by whoever asks."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why the owner's own view is missing, in words. `silent`: it was asked and did not answer in time."""

    why: str
    silent: bool = False


class LaneAdmin:
    """Questions about lanes. Blocking; for one thread."""

    def __init__(
        self, servers: str, *, patience: float = PATIENCE_SECONDS, **protection: Unpack[SecuritySettings]
    ) -> None:
        self._calls = AdminCalls(servers, security=security_of(**protection))
        self._patience = patience

    def close(self) -> None:
        self._calls.close()

    def state(self, group: str, owner: str, queue: MessageQueue, key: str | None) -> LaneStateAnswer | NoAnswer:
        """What the lane is doing, as its owner sees it."""
        address, lane = self._calls.masters().get(queue.broker, (None, False))
        if address is None or not lane:
            return NoAnswer(f"broker {queue.broker} is none of LaneMQ's: only the owner's own log knows more")
        header = RunningInfoHeader(consumer_group=group, client_id=owner)
        body = LaneStateBody(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id, key=key)
        link = BlockingConnection(address, security=self._calls.security)
        try:
            reply = link.request(
                Command(RequestCode.LANE_STATE, 0, ext=header.to_ext(), body=body.encode()), self._patience
            )
        except RequestTimedOut:
            return NoAnswer(f"its owner did not answer within {self._patience * 1000:.0f} ms", silent=True)
        except LaneError as error:
            return NoAnswer(f"its owner could not be asked: {error}")
        finally:
            link.close()
        return _read(reply)


def _read(reply: Command) -> LaneStateAnswer | NoAnswer:
    if reply.code == ResponseCode.SUCCESS:
        return LaneStateAnswer.decode(reply.body)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return NoAnswer("its owner is a stock client, or an older one, and cannot tell about single keys")
    return NoAnswer(f"its owner answered: {reply.remark}")
