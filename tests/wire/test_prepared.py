"""Threads that decode the same struct for the first time together: without preparation, the process would crash."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lanemq.wire

FOLDER = Path(lanemq.wire.__file__).parent
BASES = {"Struct", "Body", "Header"}

TOGETHER = """
import sys, threading
from lanemq.client import codec
from lanemq.wire import prepared
if sys.argv[1] == "unprepared":
    prepared.prepare_structs = lambda module: None
    codec._MAKING_A_DECODER = __import__("contextlib").nullcontext()
import msgspec
from lanemq.wire import lane_bodies, route_bodies, stats_bodies
from lanemq.wire.bodies import Body, decode_json

sys.setswitchinterval(1e-6)


def together(work):
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: (barrier.wait(), work())) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


for module in (lane_bodies, route_bodies, stats_bodies):
    for kind in [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Body)]:
        together(lambda: decode_json(kind, b"{}"))
for number in range(300):
    inner = [msgspec.defstruct(f"Part{number}", [("a", int, 0)]) for _ in range(10)]
    event = msgspec.defstruct(f"Event{number}", [(f"f{at}", kind | None, None) for at, kind in enumerate(inner)])
    together(lambda: codec.JsonCodec().decode(b'{"f0": {"a": 1}, "f9": {"a": 1}}', event))
"""


def modules_with_structs() -> list[Path]:
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        classes = [each for each in ast.parse(path.read_text("utf-8")).body if isinstance(each, ast.ClassDef)]
        names = {base.id for each in classes for base in each.bases if isinstance(base, ast.Name)}
        if names & BASES:
            found.append(path)
    return found


@pytest.mark.parametrize("path", modules_with_structs(), ids=lambda path: path.stem)
def test_a_module_prepares_its_structs_at_its_end(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.endswith("\nprepare_structs(__name__)\n") or "msgspec.json.Decoder(" in text


def run(how: str) -> int:
    return subprocess.run([sys.executable, "-c", TOGETHER, how], check=False, capture_output=True).returncode


def test_threads_that_decode_for_the_first_time_together_do_not_crash() -> None:
    assert run("prepared") == 0


@pytest.mark.extended(reason="repeats a crash until it happens")
def test_control_without_preparation_the_process_crashes() -> None:
    assert any(run("unprepared") < 0 for _ in range(10))
