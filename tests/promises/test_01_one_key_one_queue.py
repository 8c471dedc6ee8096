"""Promise 1: one key, one queue, for every producer in every process and language."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lanemq.broker.config import BrokerOptions
from lanemq.client.producer.producer import Producer
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.java_hash import java_string_hash
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

KEYS = [f"order-{number}" for number in range(50)]
SCRIPT = """
import json, sys
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.queue import MessageQueue
queues = [MessageQueue("t", "b", n) for n in range(8)]
keys = json.loads(sys.argv[1])
print(json.dumps([[pick_queue(key, queues).queue_id for key in keys], [hash(key) % 8 for key in keys]]))
"""


def in_a_process(salt: str) -> tuple[list[int], list[int]]:
    """The queues of KEYS by LaneMQ and by Python's hash(), as another process sees them."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(KEYS)]
    out = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=True)
    ours, naive = json.loads(out.stdout)
    return ours, naive


def test_two_processes_choose_the_same_queue_and_hash_does_not() -> None:
    """ "One key, one queue, for every producer in every process": Python's hash() is the negative control."""
    first, second = in_a_process("1"), in_a_process("2")
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_the_queue_is_the_one_that_java_chooses() -> None:
    """ "… and language: RocketMQ's own hash selector, byte for byte": numbers printed by Java."""
    vectors = json.loads((Path(__file__).parents[1] / "wire" / "vectors.json").read_text())["string_hashes"]
    queues = [MessageQueue("t", "b", number) for number in range(7)]
    for text, hashed in vectors.items() if isinstance(vectors, dict) else vectors:
        assert java_string_hash(text) == hashed
        assert pick_queue(text, queues).queue_id == abs(hashed) % 7


def test_pythons_own_remainder_would_choose_other_queues() -> None:
    """ "Truncating remainder, absolute value": negative control, the same hash with Python's `%`."""
    queues = [MessageQueue("t", "b", number) for number in range(7)]
    negative = [key for key in KEYS + [f"x{n}" for n in range(500)] if java_string_hash(key) < 0]
    assert any(pick_queue(key, queues).queue_id != java_string_hash(key) % 7 for key in negative)


def test_a_topic_that_its_first_send_creates_has_the_queues_its_producer_expects(tmp_path: Path) -> None:
    """ "Same key, same queue", from the first message on, also with `--default-queues 2`."""
    options = BrokerOptions(tmp_path, listen=Address("127.0.0.1", 0), default_queues=2)
    with EmbeddedBroker(options) as broker, Producer(broker.address, create="orders") as producer:
        first = {key: producer.send("orders", 1, key=key).queue for key in KEYS}
        assert first == {key: producer.send("orders", 2, key=key).queue for key in KEYS}
