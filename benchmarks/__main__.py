"""All measurements, one JSON line each: `python -m benchmarks`, or some: `python -m benchmarks send pull`."""

import sys

from benchmarks import compiled, consume, footprint, pull, raw_send, send


def _spark_read() -> None:
    """Imported only when it is wanted: it needs pyspark and a Java runtime."""
    from benchmarks import spark_read

    spark_read.main()


def _check_spark() -> None:
    from benchmarks import check_spark

    check_spark.main()


MEASUREMENTS = {
    "send": send.main,
    "raw_send": raw_send.main,
    "pull": pull.main,
    "consume": consume.main,
    "footprint": footprint.main,
    "compiled": compiled.main,
    "spark_read": _spark_read,
    "check_spark": _check_spark,
}


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - MEASUREMENTS.keys())
    if unknown:
        sys.exit(f"no measurement called {', '.join(unknown)}: choose from {', '.join(MEASUREMENTS)}")
    for name, measure in MEASUREMENTS.items():
        if not names or name in names:
            measure()


if __name__ == "__main__":
    main(sys.argv[1:])
