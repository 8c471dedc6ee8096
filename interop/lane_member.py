"""One LaneMQ push consumer whose listener follows rules; the counterpart of `java/PushMember.java`.

The first rule whose text is in the body, and which has not been used up for that message, decides. Every turn is
reported when it starts and when it ends.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from interop.lane_seen import seen_message
from lanemq.client.consumer.options import Sharing, StartFrom
from lanemq.client.consumer.push_consumer import PushConsumer
from lanemq.client.consumer.turns.handler import ConcurrentlyContext, ConcurrentlyStatus, OrderlyContext, OrderlyStatus
from lanemq.client.identity import new_client_id
from lanemq.client.message import Message

Emit = Callable[[dict[str, Any]], None]

ORDERLY: dict[str, OrderlyStatus | None] = {
    "success": OrderlyStatus.SUCCESS,
    "suspend": OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
    "commit": OrderlyStatus.COMMIT,
    "rollback": OrderlyStatus.ROLLBACK,
    "nothing": None,
}
_TURNS = itertools.count(1)


class LaneMember:
    """Started by its constructor; `options` are the fields of `clients.Listening`, with group and topic."""

    def __init__(self, address: str, name: str, options: dict[str, Any], emit: Emit) -> None:
        self.id = new_client_id()
        self._name = name
        self._options = options
        self._emit = emit
        self._uses: Counter[tuple[int, str, bytes]] = Counter()
        self._guard = threading.Lock()
        self._released = threading.Event()
        self._consumer = self._made(address)
        self._consumer.subscribe(options["topic"], options["tags"])
        if options["orderly"]:
            self._consumer.register_orderly(self._orderly)
        else:
            self._consumer.register_concurrent(self._concurrent)
        self._consumer.start()

    def release(self) -> None:
        self._released.set()

    def stop(self) -> None:
        self._released.set()
        self._consumer.shutdown()

    def _made(self, address: str) -> PushConsumer:
        options = self._options
        return PushConsumer(
            address,
            group=options["group"],
            client_id=self.id,
            consume_threads=options["threads"],
            consume_message_batch_max_size=options["batch"],
            max_reconsume_times=options["max_attempts"],
            suspend_current_queue_time_millis=options["suspend_ms"],
            manual_commit=not options["auto_commit"],
            start=StartFrom.LAST if options["from_last"] else StartFrom.FIRST,
            sharing=Sharing.BROADCASTING if options["broadcast"] else Sharing.CLUSTERING,
        )

    def _orderly(self, messages: Sequence[Message], context: OrderlyContext) -> OrderlyStatus | None:
        return ORDERLY[self._turn(messages, self._rule(messages[0]))]

    def _concurrent(self, messages: Sequence[Message], context: ConcurrentlyContext) -> ConcurrentlyStatus:
        rule = self._rule(messages[0])
        if rule is not None and rule["delay_level"] is not None:
            context.delay_level_when_next_consume = rule["delay_level"]
        later = self._turn(messages, rule) == "later"
        return ConcurrentlyStatus.RECONSUME_LATER if later else ConcurrentlyStatus.CONSUME_SUCCESS

    def _turn(self, messages: Sequence[Message], rule: dict[str, Any] | None) -> str:
        verdict = "success" if rule is None else str(rule["verdict"])
        number = next(_TURNS)
        self._report("turn", turn=number, messages=[seen_message(each) for each in messages])
        if rule is not None and rule["hold"]:
            self._released.wait()
        time.sleep(self._options["sleep_ms"] / 1000)
        self._report("end", turn=number, verdict=verdict)
        if verdict == "throw":
            raise RuntimeError("as requested: throw")
        return verdict

    def _rule(self, message: Message) -> dict[str, Any] | None:
        """The rule for this turn, counted as used."""
        body, keys = message.body, " ".join(message.keys)
        with self._guard:
            for number, rule in enumerate(self._options["rules"]):
                use = (number, keys, body)
                if rule["match"].encode() in body and (rule["times"] < 0 or self._uses[use] < rule["times"]):
                    self._uses[use] += 1
                    return dict(rule)
        return None

    def _report(self, event: str, **fields: Any) -> None:
        self._emit({"event": event, "name": self._name, "at_us": time.time_ns() // 1000, **fields})
