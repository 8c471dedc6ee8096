"""One line of the table from one JUnit report: `python -m interop.counts report.xml backend client`."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def line(report: Path, backend: str, client: str) -> str:
    """A missing report counts as one failure, because the run ended before it was written."""
    passed, failed, skipped, seconds = _counts(report) if report.exists() else (0, 1, 0, 0.0)
    return f"{backend:<10} {client:<8} {passed:>6} {failed:>6} {skipped:>7} {seconds:>7.0f}"


def _counts(report: Path) -> tuple[int, int, int, float]:
    suite = ElementTree.parse(report).getroot().find("testsuite")
    if suite is None:
        return 0, 1, 0, 0.0
    total, failures, errors, skipped = (
        int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped, float(suite.get("time", "0"))


if __name__ == "__main__":
    print(line(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
