"""Bad input never crashes, hangs or fills the memory; `make fuzz MINUTES=10` tries for longer."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fuzz.guarded import Attack, Failure, limits
from tests.fuzz.live import Siege
from tests.fuzz.targets import DECODERS, Target

from lanemq.model.errors import RemoteProtocolError
from lanemq.wire.codes import ResponseCode

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("LANEMQ_FUZZ_SECONDS", "8"))
SEED = int(os.environ.get("LANEMQ_FUZZ_SEED", "1"))
GROWTH_KIB = 64 * 1024


@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * SECONDS)
def test_a_decoder_raises_only_the_documented_error_for_damaged_input() -> None:
    """In a process of its own, whose memory is bounded."""
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(SECONDS), "--seed", str(SEED)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    print(ended.stdout)
    counts = json.loads(ended.stdout)
    assert set(counts["by target"]) == {*DECODERS, "log reader"}
    assert min(counts["by target"].values()) > 0
    understood = [name for name, cases in counts["by target"].items() if cases > counts["refused"][name]]
    assert set(understood) == set(counts["by target"]), "a target that refuses everything is not fuzzed"


@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * SECONDS)
def test_a_broker_under_bad_input_serves_the_others_and_does_not_grow(tmp_path: Path) -> None:
    siege = Siege(tmp_path / "data", SEED)
    try:
        for _ in range(20):
            siege.visit()
        before = siege.memory_kib()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            siege.visit()
        grown = siege.memory_kib() - before
        siege.end()
    finally:
        siege.close()
    print(json.dumps({"seed": SEED, "grown KiB": grown, **siege.seen, "by code": siege.codes}))
    assert grown < GROWTH_KIB
    assert siege.codes[ResponseCode.SUCCESS] > 0, "nothing got as far as a handler"
    assert len(siege.codes) > 5


# the guards of the fuzzer itself


def swallows_memory(data: bytes) -> None:
    bytearray(1 << 30)


def never_ends(data: bytes) -> None:
    while True:
        pass


def breaks(data: bytes) -> None:
    raise KeyError(data)


@pytest.mark.parametrize("bad", [swallows_memory, never_ends, breaks])
def test_a_target_that_misbehaves_is_noticed(bad: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the fuzzer reports a target that fails."""
    monkeypatch.setattr("tests.fuzz.guarded.CPU_SECONDS", 0.2)
    with limits(), pytest.raises(Failure):
        Attack("bad", Target([b"input"], bad), 1).run(1)  # type: ignore[arg-type]


def test_a_seed_gives_the_same_inputs_again() -> None:
    seen: list[list[bytes]] = []
    for _ in range(2):
        inputs: list[bytes] = []
        Attack("frame", Target([b"a sound input", b"another"], inputs.append, RemoteProtocolError), 7).run(200)
        seen.append(inputs)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 150
