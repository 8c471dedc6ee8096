"""All measurements, one JSON line each: `python -m benchmarks`, or some: `python -m benchmarks send pull`.

Those with Spark take long and need Java: only by name, or all of them with `python -m benchmarks spark`. So do those
about lanes (`python -m benchmarks lanes`), of which the last two kill and restart members for minutes, and `effects`,
which needs PostgreSQL. `check` compares with a baseline and fails (`make bench-check`).
"""

import sys
from importlib import import_module

PLAIN = ("send", "raw_send", "pull", "consume", "footprint", "compiled")
LANES = ("lanes_speed", "lanes_failing", "lanes_long", "lanes_send", "lanes_memory", "lanes_take_over", "lanes_restart")
SPARK = (
    "spark_read",
    "spark_stream",
    "spark_write",
    "pipeline_sinks",
    "large_batches",
    "spark_transitions",
    "spark_cdc",
    "spark_memory",
    "spark_scale",
)
ALONE = ("effects", "check", "start", "consume_table", "limits")
GROUPS = {"plain": PLAIN, "lanes": LANES, "spark": SPARK}


def chosen(names: list[str]) -> list[str]:
    wanted = [each for name in names or ["plain"] for each in GROUPS.get(name, (name,))]
    unknown = sorted(set(wanted) - {*PLAIN, *LANES, *SPARK, *ALONE})
    if unknown:
        there = ", ".join((*GROUPS, *PLAIN, *LANES, *SPARK, *ALONE))
        sys.exit(f"no measurement called {', '.join(unknown)}: choose from {there}")
    return list(dict.fromkeys(wanted))


def main(names: list[str]) -> None:
    for name in chosen(names):
        # Imported only when it is wanted: many need pyspark or pytest.
        import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
