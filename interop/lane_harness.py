"""LaneMQ's own client as a process that the suite controls: `python -m interop.lane_harness host:port`.

Requests come as JSON lines on stdin, replies and deliveries go as JSON lines to stdout; `harness.py` describes the
lines, `README.md` the commands. The process ends when stdin does.
"""

import json
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from interop.lane_admin import LaneAdmin, place
from interop.lane_member import LaneMember
from interop.lane_pull import LanePoller, pull
from interop.lane_seen import sha1
from lanemq import Producer
from lanemq.client.receipt import Receipt

AT_ONCE = 32
"""Requests that may wait at the same time, e.g. for a member that stops."""

Request = dict[str, Any]
Answer = Callable[[Request], Any]


class LaneHarness:
    """Starts and stops producers and consumers by name."""

    def __init__(self, address: str, emit: Callable[[Request], None]) -> None:
        self._address = address
        self._emit = emit
        self._producers: dict[str, Producer] = {}
        self._members: dict[str, LaneMember] = {}
        self._pollers: dict[str, LanePoller] = {}
        self._pullers: dict[str, str] = {}
        self._admin = LaneAdmin(address)
        self._answers: dict[str, Answer] = {
            "producer.start": self._start_producer,
            "producer.stop": lambda request: self._producers.pop(request["name"]).close(),
            "send": self._send,
            "send_batch": self._send_batch,
            "consumer.start": self._start_member,
            "consumer.release": lambda request: self._members[request["name"]].release(),
            "consumer.stop": lambda request: self._members.pop(request["name"]).stop(),
            "poller.start": self._start_poller,
            "poller.poll": lambda request: self._pollers[request["name"]].poll(request["timeout_ms"]),
            "poller.commit": lambda request: self._pollers[request["name"]].commit(),
            "poller.seek": self._seek,
            "poller.stop": lambda request: self._pollers.pop(request["name"]).stop(),
            "puller.start": lambda request: self._pullers.update({request["name"]: request["group"]}),
            "puller.pull": lambda request: pull(address, self._pullers[request["name"]], request),
            "puller.stop": lambda request: self._pullers.pop(request["name"]),
        }

    def answer(self, request: Request) -> None:
        """Whatever happens, the request gets its one line."""
        reply: Request = {"id": request["id"]}
        try:
            done = self._perform(request)
            reply["ok"] = True if done is None else done
        except Exception as error:  # noqa: BLE001 - returned to the case
            reply["error"] = f"{type(error).__name__}: {error}"
        self._emit(reply)

    def _perform(self, request: Request) -> Any:
        what = request["do"]
        if what.startswith("admin."):
            return self._admin.perform(what, request)
        return self._answers[what](request)

    def _start_producer(self, request: Request) -> None:
        self._producers[request["name"]] = Producer(self._address, group=request["group"])

    def _send(self, request: Request) -> Request:
        body = _body(request)
        receipt = self._producers[request["name"]].send(
            request["topic"],
            body,
            key=request["key"],
            tag=request["tags"],
            keys=request["keys"] or (),
            properties=request["properties"],
            delay_level=request["delay_level"],
        )
        return _described([receipt], body)

    def _send_batch(self, request: Request) -> Request:
        bodies = [body.encode() for body in request["bodies"]]
        messages = [(request["key"], body) for body in bodies]
        return _described(self._producers[request["name"]].send_many(request["topic"], messages), bodies[0])

    def _start_member(self, request: Request) -> str:
        member = LaneMember(self._address, request["name"], request, self._emit)
        self._members[request["name"]] = member
        return member.id

    def _start_poller(self, request: Request) -> None:
        self._pollers[request["name"]] = LanePoller(self._address, request)

    def _seek(self, request: Request) -> None:
        self._pollers[request["name"]].seek(request["topic"], request["queue"], request["offset"])


def _body(request: Request) -> bytes:
    if request["noise"]:
        return random.Random(request["noise"]).randbytes(request["noise"])
    text: str = request["text"] * request["repeat"]
    return text.encode()


def _described(receipts: Sequence[Receipt], body: bytes) -> Request:
    first = receipts[0]
    return {
        "queue": first.queue.queue_id,
        "offset": first.offset,
        "id": first.message_id,
        "offset_id": ",".join(place(each.topic, each.queue.queue_id, each.offset) for each in receipts),
        "size": len(body),
        "sha1": sha1(body),
    }


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(message)s")
    guard = threading.Lock()

    def emit(line: Request) -> None:
        text = json.dumps(line) + "\n"
        with guard:
            sys.stdout.write(text)
            sys.stdout.flush()

    harness = LaneHarness(sys.argv[1], emit)
    pool = ThreadPoolExecutor(AT_ONCE)
    emit({"event": "ready"})
    for line in sys.stdin:
        pool.submit(harness.answer, json.loads(line))
    os._exit(0)  # like Java's halt: ends without waiting for threads


if __name__ == "__main__":
    main()
