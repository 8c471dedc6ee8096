"""How long an abuse holds the broker's event loop: `python -m tests.load.held_loop invented_groups`.

Processor time of each piece of work on the loop, so that other work on the machine does not count. A client sends
beside the abuse, as in `test_abuse`.
"""

import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.broker.loop_pieces import LONG_SECONDS, loop_pieces
from tests.broker.running import RunningBroker
from tests.load.abuses import TOPIC

from lanemq.cli.server.serving import SWITCH_SECONDS

SECONDS = 6.0


def held(abuse: str, folder: Path) -> dict[str, object]:
    running = RunningBroker(folder / "data")
    sys.setswitchinterval(SWITCH_SECONDS)  # as `lanemq broker`
    gc.freeze()
    raw = running.connect()
    raw.create(TOPIC)
    for _ in range(20):
        raw.send_batch(TOPIC, [(b"y" * 200, {"KEYS": "k"})] * 1000)
    command = [sys.executable, "-m", "tests.load.abuses", abuse, running.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as abuser:
        assert abuser.stdout is not None
        abuser.stdout.readline()
        with loop_pieces() as pieces:
            sends, end = 0, time.monotonic() + SECONDS
            while time.monotonic() < end:
                assert raw.send(TOPIC, b"x").code == 0
                sends += 1
                time.sleep(0.002)
        abuser.kill()
    running.stop()
    longest, above = round(pieces.longest * 1000, 1), f"above {LONG_SECONDS * 1000:.0f} ms"
    return {
        "abuse": abuse,
        "sends": sends,
        "longest ms": longest,
        "what": pieces.what,
        "longest collection ms": round(pieces.collecting * 1000, 1),
        above: pieces.long,
        "of": len(pieces.times),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(held(sys.argv[1], Path(scratch))))
