"""What pipelining gains over waiting, and what the disk costs when many messages are under way.

    python -m benchmarks lanes_send

`pipelined`: ordered sends with a receipt each (`submit`) against one send after the other, on one connection.
`durable`: single sends with 64 unanswered at most, `fdatasync` before every answer, against the same without it.
Rounds take turns, so that both sides of a ratio meet the same neighbours; medians are compared.
"""

import statistics
import threading
import time
from concurrent.futures import Future

from benchmarks.harness import TOPIC, BrokerProcess, made_messages, report
from lanemq.client.producer import Producer
from lanemq.client.receipt import Receipt

ROUNDS, SINGLE, MANY, BYTES = 5, 2_000, 100_000, 100
IN_FLIGHT, WINDOWED = 64, 20_000


def main() -> None:
    _pipelined()
    _durable()


def _pipelined() -> None:
    few, many = made_messages(SINGLE, BYTES), made_messages(MANY, BYTES)
    slow, fast, bulk = [], [], []
    with BrokerProcess() as broker:
        broker.create_topic()
        with Producer(broker.address, codec="bytes") as producer:
            producer.send(TOPIC, b"warm", key="k")
            for _ in range(ROUNDS):
                began = time.perf_counter()
                for key, value in few:
                    producer.send(TOPIC, value, key=key)
                slow.append(SINGLE / (time.perf_counter() - began))
                began = time.perf_counter()
                for future in [producer.submit(TOPIC, value, key=key) for key, value in many]:
                    future.result()
                fast.append(MANY / (time.perf_counter() - began))
                began = time.perf_counter()
                producer.send_many(TOPIC, many)
                bulk.append(MANY / (time.perf_counter() - began))
    one, each, all_ = map(statistics.median, (slow, fast, bulk))
    report("lanes/pipelined_submit", each / one, "x", sync=round(one), submit=round(each), target=30)
    report("lanes/pipelined_send_many", all_ / one, "x", sync=round(one), send_many=round(all_), target=30)


def _durable() -> None:
    rates: dict[bool, list[float]] = {False: [], True: []}
    with BrokerProcess(durable=True) as durable, BrokerProcess() as relaxed:
        for broker in (durable, relaxed):
            broker.create_topic()
        with Producer(durable.address, codec="bytes") as safe, Producer(relaxed.address, codec="bytes") as quick:
            for _ in range(ROUNDS):
                rates[True].append(windowed(safe))
                rates[False].append(windowed(quick))
    hard, soft = (statistics.median(rates[each]) for each in (True, False))
    more = {"durable": round(hard), "relaxed": round(soft), "in_flight": IN_FLIGHT, "target": 0.5}
    report("lanes/durable_share", hard / soft, "x", **more)


def windowed(producer: Producer) -> float:
    """Sends per second with so many unanswered at most."""
    room = threading.Semaphore(IN_FLIGHT)

    def answered(future: "Future[Receipt]") -> None:
        future.result()
        room.release()

    began = time.perf_counter()
    for key, value in made_messages(WINDOWED, BYTES):
        room.acquire()
        producer.submit(TOPIC, value, key=key).add_done_callback(answered)
    for _ in range(IN_FLIGHT):
        room.acquire()
    return WINDOWED / (time.perf_counter() - began)
