"""The table of consuming publishes the handler that reads the message."""

from typing import Any

from benchmarks.consume_table import section


def line(handler: str, rate: float, **more: Any) -> dict[str, Any]:
    common = {"name": "consume/key_order", "keys": 10_000, "bytes": 1_000, "rounds": 5, "load": 0.5, "commit": "abc"}
    return {**common, "handler": handler, "value": rate, "best": rate, "verdict": "PASS", **more}


COSTS = {"client_cpu_us": 1.5, "broker_cpu_us": 0.5}


def test_the_first_table_is_that_of_the_handler_that_reads_and_pure_stands_beside_compiled() -> None:
    compiled = [line("event", 500_000, **COSTS), line("empty", 900_000, **COSTS)]
    text = section(compiled, [line("event", 100_000, **COSTS)], 0.0, 60.0)
    first, _, second = text.partition("reads nothing")
    assert (
        "| consume, by key, 10,000 keys, 1 KB | 500,000/s | 500,000 | 1.50 | 0.50 | 100,000/s | 1.50 | 0.50 |" in first
    )
    assert "| nothing read, by key, 10,000 keys, 1 KB | 900,000/s | 900,000 | 1.50 | 0.50 | – | – | – |" in second


def test_a_run_that_did_not_pass_its_check_is_named() -> None:
    text = section([line("event", 1.0, **COSTS, **{"verdict": "VIOLATION order"})], [], 0.0, 60.0)
    assert "- consume, by key, 10,000 keys, 1 KB: VIOLATION order" in text
