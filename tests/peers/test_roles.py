"""A reader of `make bench-peers` ends with a verdict also when messages never come."""

import json
import subprocess
import sys
from typing import Any

import pytest
from benchmarks.peers.clients.roles import WarmUp

READ = """
import time
from types import SimpleNamespace
from benchmarks.peers.clients.job import Job
from benchmarks.peers.clients.roles import run

def consume(job, handle):
    done = False
    for key, number in {received}:
        done = handle(key, {{"n": number, "at": time.monotonic_ns()}}, 0)
    while not done:
        time.sleep(10)

run(SimpleNamespace(consume=consume), Job({words}))
"""


def said(received: list[tuple[str, int]], *words: str) -> dict[str, Any]:
    program = READ.format(received=received, words=["pids=", "quiet_ms=100", *words])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


@pytest.mark.parametrize(
    ("received", "verdicts"),
    [
        ([("one-0", 0), ("one-0", 2), ("batch-0", 0)], {"one": "lost 1 of 3", "batch": "pass"}),
        ([("one-0", 0), ("one-0", 1), ("one-0", 2)], {"one": "pass", "batch": "lost 1 of 1"}),
    ],
)
def test_a_reader_that_waits_for_lost_messages_ends_with_its_verdict_and_no_time(
    received: list[tuple[str, int]], verdicts: dict[str, str]
) -> None:
    line = said(received, "do=read", "expect=4", "parts=one:3,batch:1")
    assert (line["verdict"], line["verdicts"]) == ("lost 1 of 4", verdicts)
    assert "seconds" not in line


def test_a_reader_that_gets_messages_out_of_order_and_twice_ends_by_itself_and_says_so() -> None:
    line = said([("a-0", 0), ("a-0", 2), ("a-0", 2), ("a-0", 1)], "do=read", "expect=3", "quiet_ms=60000")
    assert (line["verdict"], line["repeats"]) == ("1 of 3 out of order", 1)
    assert line["seconds"] > 0


def test_a_reader_that_gets_nothing_at_all_fails_instead_of_accusing_the_server() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        said([], "do=read", "expect=3", "quiet_ms=20")
    assert failure.value.stderr == "no message came within 0.08 s"


def test_a_listener_that_waits_for_lost_messages_ends_with_its_verdict() -> None:
    probes = [(f"probe-{number}", 0) for number in range(64)]
    line = said([*probes, ("a-0", 0), ("a-0", 2)], "do=listen", "expect=3", "skip_ms=0")
    assert (line["verdict"], line["count"], len(line["delays_us"])) == ("lost 1 of 3", 2, 2)


def test_a_warm_up_sends_more_until_a_call_is_long_enough_for_its_rate_to_count() -> None:
    warm_up = WarmUp("pipelined", 2.0, 100)
    warm_up.took(0.05)  # 2,000 messages, most of it connecting
    assert (warm_up.count, warm_up.is_over) == (15_000, False)
    warm_up.took(0.06)
    assert (warm_up.count, warm_up.is_over) == (93_750, False)
    warm_up.took(0.3)
    assert (warm_up.count, warm_up.is_over) == (625_000, True)


def test_a_round_with_a_given_number_of_messages_warms_up_with_an_eighth_of_them() -> None:
    warm_up = WarmUp("batch", 0.0, 100, 200_000)
    assert warm_up.count == 25_000
    warm_up.took(0.01)
    assert (warm_up.count, warm_up.is_over) == (200_000, True)


def test_a_warm_up_ends_at_the_most_messages_that_fit_into_memory() -> None:
    warm_up = WarmUp("batch", 2.0, 1_000_000)
    warm_up.took(0.0001)
    assert (warm_up.count, warm_up.is_over) == (1_500, True)
