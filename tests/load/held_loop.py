"""How long an abuse holds the broker's event loop: `python -m tests.load.held_loop invented_groups`.

Processor time of each piece of work on the loop, so that other work on the machine does not count. A client sends
beside the abuse, as in `test_abuse`.
"""

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.broker.running import RunningBroker
from tests.load.abuses import TOPIC

SECONDS = 6.0
LONG_MS = 2.0


def timed(times: list[float]) -> None:
    """Note the milliseconds of every callback of event loops from now on."""
    run = asyncio.events.Handle._run

    def noted(handle: asyncio.Handle) -> None:
        begin = time.thread_time_ns()
        run(handle)
        times.append((time.thread_time_ns() - begin) / 1e6)

    asyncio.events.Handle._run = noted  # type: ignore[method-assign]


def held(abuse: str, folder: Path) -> dict[str, object]:
    running = RunningBroker(folder / "data")
    sys.setswitchinterval(0.0005)  # as `lanemq broker`
    gc.freeze()
    raw, times = running.connect(), list[float]()
    raw.create(TOPIC)
    for _ in range(20):
        raw.send_batch(TOPIC, [(b"y" * 200, {"KEYS": "k"})] * 1000)
    command = [sys.executable, "-m", "tests.load.abuses", abuse, running.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as abuser:
        assert abuser.stdout is not None
        abuser.stdout.readline()
        timed(times)
        sends, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            assert raw.send(TOPIC, b"x").code == 0
            sends += 1
            time.sleep(0.002)
        abuser.kill()
    longest, above = round(max(times), 1), sum(each > LONG_MS for each in times)
    running.stop()
    return {"abuse": abuse, "sends": sends, "longest ms": longest, f"above {LONG_MS} ms": above, "of": len(times)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(held(sys.argv[1], Path(scratch))))
