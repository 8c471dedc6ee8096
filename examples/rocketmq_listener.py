"""RocketMQ's push consumer with an orderly listener and its statuses.

SUSPEND_CURRENT_QUEUE_A_MOMENT repeats a message after a while, and the whole queue waits. With manual commit, SUCCESS
keeps messages uncommitted until COMMIT, and ROLLBACK repeats all of them.

    python examples/rocketmq_listener.py localhost:9876
"""

import sys
import threading
from collections.abc import Sequence

from lanemq import Admin, Message, OrderlyContext, OrderlyStatus, Producer, PushConsumer, StartFrom

LAST = 5
TOPIC_SUSPEND, TOPIC_COMMIT = "listener-suspend", "listener-commit"


class SuspendingListener:
    """Suspends at message 2 twice; the messages behind it wait."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.finished = threading.Event()

    def __call__(self, messages: Sequence[Message], context: OrderlyContext) -> OrderlyStatus:
        number = messages[0].value(int)
        self.attempts.append(number)
        if number == 2 and self.attempts.count(2) < 3:
            context.suspend_current_queue_time_millis = 20
            return OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        if number == LAST:
            self.finished.set()
        return OrderlyStatus.SUCCESS


class CommittingListener:
    """Collects numbers and commits them together. The first time it rolls back and gets all of them again."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.committed: list[int] = []
        self._open: list[int] = []
        self._rolled_back = False
        self.finished = threading.Event()

    def __call__(self, messages: Sequence[Message], context: OrderlyContext) -> OrderlyStatus:
        number = messages[0].value(int)
        self.attempts.append(number)
        self._open.append(number)
        if number == LAST and not self._rolled_back:
            self._rolled_back = True
            self._open.clear()
            return OrderlyStatus.ROLLBACK
        if number < LAST:
            return OrderlyStatus.SUCCESS
        self.committed, self._open = self._open, []
        self.finished.set()
        return OrderlyStatus.COMMIT


def consume(servers: str, topic: str, listener: SuspendingListener | CommittingListener) -> None:
    consumer = PushConsumer(
        servers,
        group=f"{topic}-group",
        start=StartFrom.FIRST,
        suspend_current_queue_time_millis=50,
        manual_commit=isinstance(listener, CommittingListener),
    )
    consumer.subscribe(topic, "*")
    consumer.register_orderly(listener)
    consumer.start()
    try:
        if not listener.finished.wait(30):
            raise SystemExit(f"the listener did not finish, it saw {listener.attempts}")
    finally:
        consumer.shutdown()


def main(servers: str = "localhost:9876") -> tuple[SuspendingListener, CommittingListener]:
    with Admin(servers) as admin, Producer(servers) as producer:
        for topic in (TOPIC_SUSPEND, TOPIC_COMMIT):
            admin.create_topic(topic, queues=1, ordered=True)
            for number in range(1, LAST + 1):
                producer.send(topic, number, key="one-line")
    suspending, committing = SuspendingListener(), CommittingListener()
    consume(servers, TOPIC_SUSPEND, suspending)
    consume(servers, TOPIC_COMMIT, committing)
    print(f"with SUSPEND:  {suspending.attempts}")
    print(f"with ROLLBACK: {committing.attempts}, committed {committing.committed}")
    return suspending, committing


if __name__ == "__main__":
    main(*sys.argv[1:])
