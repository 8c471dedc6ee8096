"""How fast producers send to a broker in another process; one JSON line per measurement.

    python benchmarks/send.py [--durable] [--messages 200000] [--bytes 100]

Loopback, one producer, 100 keys over 4 queues. `one by one` waits for every receipt; `submit` hands out a future
per message; `send_many` is one call.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable

from lanemq.client.admin import Admin
from lanemq.client.async_producer import AsyncProducer
from lanemq.client.producer import Producer

BROKER = """
import sys, tempfile
from pathlib import Path
from lanemq.broker.config import BrokerOptions
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
with tempfile.TemporaryDirectory() as folder:
    options = BrokerOptions(Path(folder), listen=Address("127.0.0.1", 0), durable=sys.argv[1] == "durable")
    with EmbeddedBroker(options) as broker:
        print(broker.address, flush=True)
        sys.stdin.read()
"""

Messages = list[tuple[str, bytes]]


def report(name: str, mode: str, messages: int, seconds: float) -> None:
    print(json.dumps({"bench": f"send/{name}", "mode": mode, "messages": messages, "per_s": round(messages / seconds)}))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def blocking(address: str, mode: str, messages: Messages) -> None:
    few = messages[: max(1, len(messages) // 40)]
    with Producer(address, codec="bytes") as producer:
        producer.send("bench", b"warm", key="k")
        report("one by one", mode, len(few), timed(lambda: [producer.send("bench", v, key=k) for k, v in few]))

        def submit() -> None:
            for future in [producer.submit("bench", value, key=key) for key, value in messages]:
                future.result()

        report("submit", mode, len(messages), timed(submit))
        report("send_many", mode, len(messages), timed(lambda: producer.send_many("bench", messages)))


async def on_a_loop(address: str, mode: str, messages: Messages) -> None:
    few = messages[: max(1, len(messages) // 40)]
    async with AsyncProducer(address, codec="bytes") as producer:
        await producer.send("bench", b"warm", key="k")
        start = time.perf_counter()
        for key, value in few:
            await producer.send("bench", value, key=key)
        report("async one by one", mode, len(few), time.perf_counter() - start)
        start = time.perf_counter()
        futures = [await producer.submit("bench", value, key=key) for key, value in messages]
        await asyncio.gather(*futures)
        report("async submit", mode, len(messages), time.perf_counter() - start)
        start = time.perf_counter()
        await producer.send_many("bench", messages)
        report("async send_many", mode, len(messages), time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=100)
    args = parser.parse_args()
    mode = "durable" if args.durable else "relaxed"
    messages = [(f"key-{number % 100}", b"x" * args.bytes) for number in range(args.messages)]
    broker = subprocess.Popen(
        [sys.executable, "-c", BROKER, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert broker.stdin is not None
    assert broker.stdout is not None
    try:
        address = broker.stdout.readline().strip()
        with Admin(address) as admin:
            admin.create_topic("bench", 4, ordered=True)
        blocking(address, mode, messages)
        asyncio.run(on_a_loop(address, mode, messages))
    finally:
        broker.stdin.close()
        broker.wait()


if __name__ == "__main__":
    main()
