"""Code of the program that raises where a client serves others: callbacks and signal handlers.

Each program runs in a process of its own, because it hangs where a promise is broken.
"""

import subprocess
import sys
import textwrap

import pytest

START = """
import gc, logging, os, signal, sys, threading, time
from concurrent.futures import Future
from lanemq import Consumer, Producer
from lanemq.testing.embedded import EmbeddedBroker
broker = EmbeddedBroker()
broker.start()
"""


def run(program: str, seconds: float = 40) -> str:
    """What the program wrote; fails if it does not end."""
    text = START + textwrap.dedent(program)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=seconds, check=False)
    return ended.stdout + ended.stderr


def test_a_callback_that_exits_does_not_keep_other_messages_from_their_outcome() -> None:
    written = run(
        """
        producer = Producer(broker.address, create=["orders"], delivery_timeout=1.0, timeout=1.0)
        producer.send("orders", 0, key="first")
        broker.stop()
        futures = [producer.submit("orders", number, key=str(number)) for number in range(20)]
        futures[0].add_done_callback(lambda future: sys.exit(1))
        end = time.monotonic() + 15
        while time.monotonic() < end and not all(future.done() for future in futures):
            time.sleep(0.05)
        print(sum(future.done() for future in futures), "of 20 are settled", flush=True)
        os._exit(0)
        """
    )
    assert "20 of 20 are settled" in written


def test_the_end_of_the_program_says_what_an_interrupted_close_left() -> None:
    """docs/guides/outages.md: the exit waits up to ten seconds, and then says how many messages are left."""
    written = run(
        """
        producer = Producer(broker.address, create=["orders"])
        producer.send("orders", 0, key="first")
        broker.stop()
        for number in range(100):
            producer.submit("orders", number, key=str(number))
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            producer.close()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    assert "interrupted" in written
    assert "messages that may be lost: 100" in written


@pytest.mark.parametrize("seed", [1, 2])
def test_an_interrupted_poll_leaves_a_consumer_that_continues(seed: int) -> None:
    written = run(
        f"""
        import random
        random.seed({seed})
        with Producer(broker.address, create=["orders"]) as producer:
            producer.send_many("orders", [(str(number % 200), number) for number in range(8000)])

        class Late(Exception): ...

        armed = False

        def ring(*_):
            if armed:
                raise Late

        signal.signal(signal.SIGALRM, ring)
        beat = time.monotonic()

        def watch():
            while time.monotonic() - beat < 8:
                time.sleep(0.2)
            print("hangs", flush=True)
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
        consumer = Consumer(broker.address, group="g", topics="orders")
        consumer.start()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            beat = time.monotonic()
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 0.00001 + random.random() * 0.0004)
                message = consumer.poll(timeout=0.2)
                if message is not None:
                    consumer.done(message)
            except Exception:
                pass
            finally:
                armed = False
        print("continues", flush=True)
        os._exit(0)
        """
    )
    assert "continues" in written
