"""A program that has no file descriptor left, which its clients need to connect."""

from tests.client.test_user_code_anywhere import run

EXHAUSTED = """
import asyncio, resource
from lanemq import AsyncProducer, LaneError
from lanemq.testing.embedded import EmbeddedBroker

def exhaust():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    files = []
    try:
        while True:
            files.append(open("/dev/null"))
    except OSError:
        return files

def close(files):
    while files:
        files.pop().close()
"""


def test_a_producer_waits_for_a_descriptor_as_it_waits_for_a_broker() -> None:
    written = run(
        EXHAUSTED
        + """
import encodings.idna  # which the first look-up of a host would import
files = exhaust()
producer = Producer(broker.address, create=["orders"], timeout=1.0)
try:
    producer.send("orders", 1, key="k")
except LaneError as error:
    print(error, flush=True)
threading.Timer(0.5, close, [files]).start()
print("stored", Producer(broker.address, create=["orders"]).send("orders", 1, key="k").offset, flush=True)
os._exit(0)
"""
    )
    assert "too many files and connections open: close some, or raise its limit (ulimit -n)" in written, written
    assert "is a broker running" not in written
    assert "stored 0" in written, written


def test_a_producer_on_an_event_loop_does_too() -> None:
    written = run(
        EXHAUSTED
        + """
async def main():
    files = exhaust()
    try:
        await AsyncProducer(broker.address, create=["orders"], timeout=1.0).send("orders", 1, key="k")
    except LaneError as error:
        print(error, flush=True)
    asyncio.get_running_loop().call_later(0.5, close, files)
    producer = AsyncProducer(broker.address, create=["orders"])
    print("stored", (await producer.send("orders", 1, key="k")).offset, flush=True)
    os._exit(0)

asyncio.run(main())
"""
    )
    assert "too many files and connections open: close some, or raise its limit (ulimit -n)" in written, written
    assert "stored 0" in written, written
