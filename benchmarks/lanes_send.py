"""What pipelining gains over waiting, and what the disk costs when many messages are under way.

    python -m benchmarks lanes_send

`pipelined`: ordered sends with a receipt each (`submit`) against one send after the other, on one connection.
`durable`: single sends with 64 unanswered at most, `fdatasync` before every answer, against the same without it.
Rounds take turns, so that both sides of a ratio meet the same neighbours; medians are compared. `verdict` is the
checker's verdict on the last round of each kind.
"""

import statistics
import threading
import time
from concurrent.futures import Future

from benchmarks.audit import verdict
from benchmarks.harness import TOPIC, BrokerProcess, made_messages, report
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt

ROUNDS, SINGLE, MANY, BYTES = 5, 2_000, 100_000, 100
IN_FLIGHT, WINDOWED = 64, 20_000


def main() -> None:
    _pipelined()
    _durable()


def _pipelined() -> None:
    few, many = made_messages(SINGLE, BYTES), made_messages(MANY, BYTES)
    rates: dict[str, list[float]] = {"sync": [], "submit": [], "send_many": []}
    kept: dict[str, list[Receipt]] = {}
    with BrokerProcess() as broker:
        broker.create_topic()
        with Producer(broker.address, codec="bytes") as producer:
            producer.send(TOPIC, b"warm", key="k")
            for _ in range(ROUNDS):
                began = time.perf_counter()
                kept["sync"] = [producer.send(TOPIC, value, key=key) for key, value in few]
                rates["sync"].append(SINGLE / (time.perf_counter() - began))
                began = time.perf_counter()
                futures = [producer.submit(TOPIC, value, key=key) for key, value in many]
                kept["submit"] = [future.result() for future in futures]
                rates["submit"].append(MANY / (time.perf_counter() - began))
                began = time.perf_counter()
                kept["send_many"] = producer.send_many(TOPIC, many)
                rates["send_many"].append(MANY / (time.perf_counter() - began))
        verdicts = {name: verdict(broker, receipts) for name, receipts in kept.items()}
    one = statistics.median(rates["sync"])
    for name in ("submit", "send_many"):
        fast = statistics.median(rates[name])
        more = {"sync": round(one), name: round(fast), "target": 30, "verdict": verdicts[name]}
        report(f"lanes/pipelined_{name}", fast / one, "x", **more)


def _durable() -> None:
    rates: dict[bool, list[float]] = {False: [], True: []}
    with BrokerProcess(durable=True) as durable, BrokerProcess() as relaxed:
        for broker in (durable, relaxed):
            broker.create_topic()
        with Producer(durable.address, codec="bytes") as safe, Producer(relaxed.address, codec="bytes") as quick:
            for _ in range(ROUNDS):
                rate, receipts = windowed(safe)
                rates[True].append(rate)
                rates[False].append(windowed(quick)[0])
        word = verdict(durable, receipts)
    hard, soft = (statistics.median(rates[each]) for each in (True, False))
    more = {"durable": round(hard), "relaxed": round(soft), "in_flight": IN_FLIGHT, "target": 0.5, "verdict": word}
    report("lanes/durable_share", hard / soft, "x", **more)


def windowed(producer: Producer) -> tuple[float, list[Receipt]]:
    """Sends per second with so many unanswered at most, and the receipts."""
    room = threading.Semaphore(IN_FLIGHT)

    def answered(_: "Future[Receipt]") -> None:
        room.release()

    futures = []
    began = time.perf_counter()
    for key, value in made_messages(WINDOWED, BYTES):
        room.acquire()
        future = producer.submit(TOPIC, value, key=key)
        future.add_done_callback(answered)
        futures.append(future)
    for _ in range(IN_FLIGHT):
        room.acquire()
    rate = WINDOWED / (time.perf_counter() - began)
    return rate, [future.result() for future in futures]
