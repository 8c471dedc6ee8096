"""The environment of one case for a client in another language: its own topics and groups, and its programs."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.ports import ask, eventually
from interop.programs import PROGRAMS, Run, Unsupported
from lanemq import Admin, Producer, PullConsumer

GET_CONSUMER_CONNECTION_LIST = 203
QUERY_MESSAGE = 12
CONSUME_MESSAGE_DIRECTLY = 309
QUERY_CONSUMER_OFFSET = 14
QUEUES = 4


class Bench:
    """Starts programs and ends them. A client that lacks a feature skips its case."""

    def __init__(self, case: str, address: str, client: str, folder: Path) -> None:
        self.address = address
        self.client = client
        self.program = PROGRAMS[client]
        self._folder = folder / case
        self._folder.mkdir()
        self._ending = contextlib.ExitStack()
        self._count = 0

    def topic(self, queues: int = QUEUES) -> str:
        name = self.name("t")
        with Admin(self.address) as admin:
            admin.create_topic(name, queues)
        return name

    def name(self, kind: str) -> str:
        return f"{kind}_{uuid.uuid4().hex[:12]}"

    # the client under test

    def run(self, **job: Any) -> Run:
        self._count += 1
        run = Run(self.program.build(), self.address, job, self._folder / f"{self._count}-{job['do']}.err")
        self._ending.callback(_stop_quietly, run)
        return run

    def send(self, topic: str, messages: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
        """The receipts of messages that the client under test has sent."""
        with self.skipping():
            lines = self.run(do="send", topic=topic, messages=messages, **more).finished()
        return [line["sent"] for line in lines if "sent" in line]

    def consume(self, topic: str, group: str, **more: Any) -> Run:
        """A running consumer of the client under test."""
        defaults = {"tags": "*", "orderly": False, "broadcast": False, "from_last": False, "fail": []}
        run = self.run(**{"do": "consume", "topic": topic, "group": group, **defaults, **more})
        with self.skipping():
            run.wait(lambda lines: any("ready" in line for line in lines), "ready")
        return run

    def lacking(self, clients: str, why: str) -> None:
        """Skip the case for these clients."""
        if self.client in clients.split():
            pytest.skip(f"the client lacks this: {why}")

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        try:
            yield
        except Unsupported as reason:
            pytest.skip(str(reason))

    # LaneMQ's own clients

    def lane_sends(self, topic: str, bodies: list[str], tag: str | None = None) -> None:
        """Bodies are `key:number`."""
        with Producer(self.address) as producer:
            for body in bodies:
                producer.send(topic, body.encode(), key=body.split(":")[0], tag=tag)

    def stored(self, topic: str, count: int) -> dict[int, list[str]]:
        """All bodies by queue, in the order of their offsets."""

        def everything() -> dict[int, list[str]] | None:
            found: dict[int, list[str]] = {}
            with PullConsumer(self.address, group=self.name("reader")) as reader:
                reader.assign(reader.queues(topic))
                reader.seek_to_first()
                while batch := reader.poll(timeout=0.5):
                    for message in batch:
                        found.setdefault(message.queue.queue_id, []).append(message.body.decode())
            return found if sum(map(len, found.values())) >= count else None

        return eventually(everything, 30, f"{count} messages in {topic}")

    # bare requests

    def connections(self, group: str) -> list[dict[str, Any]]:
        code, body = self._ask(GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        return json.loads(body)["connectionSet"] if code == 0 else []

    def members(self, group: str) -> int:
        return len({each["clientId"] for each in self.connections(group)})

    def committed(self, topic: str, group: str) -> int:
        """The sum of the group's offsets."""
        total = 0
        for queue in range(QUEUES):
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "laneClient": "reader"}
            code, _, answer = self._ask_all(QUERY_CONSUMER_OFFSET, ext)
            total += int(answer["offset"]) if code == 0 else 0
        return total

    def consume_directly(self, group: str, client_id: str, message_id: str) -> str:
        """Have a member handle one message again, as the dashboard's button does; its verdict."""
        ext = {"consumerGroup": group, "clientId": client_id, "msgId": message_id}
        code, body = self._ask(CONSUME_MESSAGE_DIRECTLY, ext)
        verdict = json.loads(body)["consumeResult"] if code == 0 else f"refused with {code}"
        return "CR_SUCCESS" if verdict == 0 else str(verdict)  # Go writes enums as numbers

    def found_by_key(self, topic: str, key: str) -> bytes:
        """The records of a topic with this key, as bytes."""
        ext = {"topic": topic, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**60)}
        return self._ask(QUERY_MESSAGE, ext)[1]

    def _ask(self, code: int, ext: dict[str, str]) -> tuple[int, bytes]:
        code, body, _ = self._ask_all(code, ext)
        return code, body

    def _ask_all(self, code: int, ext: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        return ask(int(self.address.rpartition(":")[2]), code, ext)

    def close(self) -> None:
        self._ending.close()


def _stop_quietly(run: Run) -> None:
    with contextlib.suppress(OSError, ValueError):
        run.stop()
