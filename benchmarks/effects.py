"""What exactly once into PostgreSQL costs: a consumer whose handler writes with `once`, and with a plain transaction.

    python -m benchmarks effects

From the broker to committed rows, with batches and one message at a time; both ways in turn, the ratio counts. Then
single transactions on one connection, without a broker. The server runs on this machine with its defaults, so that
commits wait for the disk.
"""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import psycopg
import psycopg_pool
from tests import postgres_server
from tests.effects.messages import delivered

from benchmarks.harness import TOPIC, BrokerProcess, report
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.effects import once

KEYS, LANES, ROUNDS = 50, 8, 3
BATCH, BATCHED, SINGLE, TRANSACTIONS = 100, 60_000, 4_000, 2_000
TARGET = 5_000
INSERT = "INSERT INTO rows (key, body) SELECT * FROM unnest(%s::text[], %s::bytea[])"
Transaction = Callable[[Sequence[Message], Any], AbstractContextManager[Any]]


def main() -> None:
    reason = postgres_server.reason_to_skip()
    if reason is not None:
        report("effects/skipped", 0, reason)
        return
    with postgres_server.running_server(durable=True) as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE rows (key TEXT, body BYTEA)")
        with BrokerProcess() as broker, psycopg_pool.ConnectionPool(server.dsn, min_size=LANES) as pool:
            broker.create_topic()
            with Producer(broker.address, codec="bytes") as producer:
                producer.send_many(TOPIC, [(f"key-{n % KEYS}", b"x" * 100) for n in range(BATCHED)])
            compare("batches", broker.address, pool, BATCH, BATCHED, target=TARGET)
            compare("one_by_one", broker.address, pool, 1, SINGLE)
        single_transactions(server.dsn)


def compare(name: str, address: str, pool: Any, batch_size: int, messages: int, **more: Any) -> None:
    groups = count()
    exact, plain = [], []
    for _ in range(ROUNDS):
        plain.append(rate(address, f"{name}-{next(groups)}", pool, batch_size, messages, plainly))
        exact.append(rate(address, f"{name}-{next(groups)}", pool, batch_size, messages, once))
    report(
        f"effects/postgresql/{name}",
        statistics.median(exact),
        "effects/s",
        best=round(max(exact)),
        plain=round(statistics.median(plain)),
        of_plain=round(statistics.median(exact) / statistics.median(plain), 2),
        batch=batch_size,
        keys=KEYS,
        lanes=LANES,
        rounds=ROUNDS,
        messages=messages,
        **more,
    )


def plainly(_: Sequence[Message], pool: Any) -> AbstractContextManager[Any]:
    """A transaction without `once`: the pool commits it."""
    connection: AbstractContextManager[Any] = pool.connection()
    return connection


def rate(address: str, group: str, pool: Any, batch_size: int, messages: int, transaction: Transaction) -> float:
    """Messages per second, from the first call of the handler to the last commit."""
    app: Any = App(address, group=group, codec="bytes")
    begun: list[float] = []
    mutex, done, finished = threading.Lock(), 0, threading.Event()

    def write(batch: Sequence[Message]) -> None:
        nonlocal done
        if not begun:
            begun.append(time.perf_counter())
        with transaction(batch, pool) as connection:
            connection.execute(INSERT, ([each.key for each in batch], [each.body for each in batch]))
        with mutex:
            done += len(batch)
            if done >= messages:
                finished.set()

    if batch_size > 1:

        def handler(batch: Sequence[Message]) -> None:
            write(batch)

    else:

        def handler(message: Message) -> None:  # type: ignore[misc]
            write([message])

    app.ordered(TOPIC, lanes=LANES, batch_size=batch_size)(handler)
    app.start()
    assert finished.wait(300), "the consumer did not finish"
    seconds = time.perf_counter() - begun[0]
    app.stop(now=True)
    return done / seconds


def single_transactions(dsn: str) -> None:
    """The time of one transaction with one row, on one connection."""
    with psycopg.connect(dsn) as connection:

        def plain(message: Message) -> None:
            connection.execute(INSERT, ([message.key], [b"x"]))
            connection.commit()

        def exact(message: Message) -> None:
            with once(message, connection):
                connection.execute(INSERT, ([message.key], [b"x"]))

        took: dict[str, list[float]] = {"plain": [], "once": []}
        for number in range(TRANSACTIONS):
            message = delivered(number)
            for name, run in (("plain", plain), ("once", exact)):
                began = time.perf_counter()
                run(message)
                took[name].append(time.perf_counter() - began)
    median = {name: statistics.median(each) * 1e6 for name, each in took.items()}
    report(
        "effects/postgresql/transaction",
        median["once"],
        "us",
        plain=round(median["plain"]),
        more=round(median["once"] - median["plain"]),
        transactions=TRANSACTIONS,
    )


if __name__ == "__main__":
    main()
