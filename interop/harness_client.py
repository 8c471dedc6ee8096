"""A `Client` for any process that speaks the protocol of `harness.py`."""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from interop.clients import WAIT_SECONDS, Admin, Content, Listening, Pulled, Receipt, Seen, Turn
from interop.harness import Harness

_NUMBERS = itertools.count(1)


def _fresh(kind: str) -> str:
    """A unique name; names become client ids at the broker."""
    return f"{kind}-{os.getpid()}-{next(_NUMBERS)}"


def _receipt(answer: dict[str, Any]) -> Receipt:
    return Receipt(**{name: answer[name] for name in Receipt.__slots__})


def _seen(answers: Sequence[dict[str, Any]]) -> list[Seen]:
    found: list[Seen] = []
    for answer in answers:
        values: dict[str, Any] = {name: answer.get(name) for name in Seen.__slots__}
        found.append(Seen(**values))
    return found


def _by_queue(answer: dict[str, int]) -> dict[int, int]:
    return {int(queue): offset for queue, offset in answer.items()}


class HarnessProducer:
    def __init__(self, harness: Harness, group: str) -> None:
        self._harness = harness
        self._name = _fresh("producer")
        harness.call("producer.start", name=self._name, group=group)

    def send(self, topic: str, content: str | Content, key: str | None = None) -> Receipt:
        sent = Content(content) if isinstance(content, str) else content
        return _receipt(self._harness.call("send", name=self._name, topic=topic, key=key, **asdict(sent)))

    def send_batch(self, topic: str, bodies: Sequence[str], key: str) -> Receipt:
        answer = self._harness.call(
            "send_batch", name=self._name, topic=topic, bodies=list(bodies), key=key, **asdict(Content())
        )
        return _receipt(answer)

    def stop(self) -> None:
        self._harness.call("producer.stop", name=self._name)


class HarnessMember:
    def __init__(self, harness: Harness, group: str, topic: str, listening: Listening, owned: bool) -> None:
        self._harness = harness
        self._owned = owned
        self._name = _fresh("member")
        self._turns: dict[int, Turn] = {}
        self._changed = threading.Condition()
        harness.listen(self._name, self._hear)
        options = asdict(listening)
        self.id: str = harness.call("consumer.start", name=self._name, group=group, topic=topic, **options)

    def turns(self) -> list[Turn]:
        with self._changed:
            return list(self._turns.values())

    def wait(self, until: Callable[[list[Turn]], bool], within: float = WAIT_SECONDS) -> list[Turn]:
        with self._changed:
            if self._changed.wait_for(lambda: until(list(self._turns.values())), within):
                return list(self._turns.values())
        bodies = [f"{turn.body[:40]}={turn.verdict}" for turn in self.turns()]
        raise TimeoutError(f"not within {within:.0f} s; {len(bodies)} turns so far: {bodies[-40:]}")

    def release(self) -> None:
        self._harness.call("consumer.release", name=self._name)

    def stop(self) -> None:
        self._harness.call("consumer.stop", name=self._name)
        if self._owned:
            self._harness.close()

    def kill(self) -> None:
        if not self._owned:
            raise ValueError("only a member with a process of its own can be killed")
        self._harness.kill()

    def _hear(self, event: dict[str, Any]) -> None:
        with self._changed:
            if event["event"] == "turn":
                turn = Turn(self._name, _seen(event["messages"]), event["at_us"])
                self._turns[event["turn"]] = turn
            else:
                self._turns[event["turn"]].ended_us = event["at_us"]
                self._turns[event["turn"]].verdict = event["verdict"]
            self._changed.notify_all()


class HarnessPoller:
    def __init__(self, harness: Harness, group: str, topic: str, tags: str, auto_commit: bool) -> None:
        self._harness = harness
        self._name = _fresh("poller")
        harness.call("poller.start", name=self._name, group=group, topic=topic, tags=tags, auto_commit=auto_commit)

    def poll(self, timeout_ms: int = 1000) -> list[Seen]:
        return _seen(self._harness.call("poller.poll", name=self._name, timeout_ms=timeout_ms))

    def commit(self) -> None:
        self._harness.call("poller.commit", name=self._name)

    def seek(self, topic: str, queue: int, offset: int) -> None:
        self._harness.call("poller.seek", name=self._name, topic=topic, queue=queue, offset=offset)

    def stop(self) -> None:
        self._harness.call("poller.stop", name=self._name)


class HarnessPuller:
    def __init__(self, harness: Harness, group: str) -> None:
        self._harness = harness
        self._name = _fresh("puller")
        harness.call("puller.start", name=self._name, group=group)

    def pull(self, topic: str, queue: int, offset: int, most: int = 32, tags: str = "*") -> Pulled:
        answer = self._harness.call(
            "puller.pull", name=self._name, topic=topic, queue=queue, offset=offset, most=most, tags=tags
        )
        return Pulled(**{**answer, "messages": _seen(answer["messages"])})

    def stop(self) -> None:
        self._harness.call("puller.stop", name=self._name)


class HarnessAdmin:
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def create_topic(self, topic: str, queues: int) -> None:
        self._harness.call("admin.create_topic", topic=topic, queues=queues)

    def reset(self, topic: str, group: str, timestamp_ms: int) -> dict[int, int]:
        return _by_queue(self._harness.call("admin.reset", topic=topic, group=group, timestamp_ms=timestamp_ms))

    def view(self, topic: str, message_id: str) -> Seen:
        return _seen([self._harness.call("admin.view", topic=topic, message=message_id)])[0]

    def query(self, topic: str, key: str) -> list[Seen]:
        return _seen(self._harness.call("admin.query", topic=topic, key=key))

    def progress(self, topic: str, group: str) -> dict[int, int]:
        return _by_queue(self._harness.call("admin.progress", topic=topic, group=group))

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        answer = self._harness.call("admin.bounds", topic=topic)
        return {int(queue): (pair[0], pair[1]) for queue, pair in answer.items()}

    def members(self, group: str) -> list[str]:
        return list(self._harness.call("admin.members", group=group))

    def search(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        return _by_queue(self._harness.call("admin.search", topic=topic, timestamp_ms=timestamp_ms))


class HarnessClient:
    """Uses one process for almost everything; a member that will be killed gets its own."""

    def __init__(self, name: str, spawn: Callable[[], Harness]) -> None:
        self.name = name
        self._spawn = spawn
        self._harness = spawn()
        self._extra: list[Harness] = []
        self.admin: Admin = HarnessAdmin(self._harness)

    def producer(self, group: str) -> HarnessProducer:
        return HarnessProducer(self._harness, group)

    def member(self, group: str, topic: str, listening: Listening, own_process: bool = False) -> HarnessMember:
        harness = self._harness
        if own_process:
            harness = self._spawn()
            self._extra.append(harness)
        return HarnessMember(harness, group, topic, listening, own_process)

    def poller(self, group: str, topic: str, tags: str = "*", auto_commit: bool = False) -> HarnessPoller:
        return HarnessPoller(self._harness, group, topic, tags, auto_commit)

    def puller(self, group: str) -> HarnessPuller:
        return HarnessPuller(self._harness, group)

    def close(self) -> None:
        for harness in [self._harness, *self._extra]:
            harness.close()
