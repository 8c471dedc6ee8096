"""The table client × feature from JUnit reports of `languages/`: `python -m interop.features NAME=report.xml …`.

A case is a row: `yes`, `no` if it fails, `–` if the client does not have the feature. The last row counts the cases
that passed among those that the client can run.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def table(reports: dict[str, Path]) -> str:
    """A Markdown table; a report that was not written is a column of failures."""
    columns = {name: _outcomes(report) for name, report in reports.items()}
    features = list(dict.fromkeys(feature for column in columns.values() for feature in column))
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    rows += [[feature, *(column.get(feature, "no") for column in columns.values())] for feature in features]
    rows += [["**passed**", *(_count(column, features) for column in columns.values())]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _outcomes(report: Path) -> dict[str, str]:
    if not report.exists():
        return {}
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("name", "").removeprefix("test_").replace("_", " "): _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "no"
    return "–" if case.find("skipped") is not None else "yes"


def _count(column: dict[str, str], features: list[str]) -> str:
    outcomes = [column.get(feature, "no") for feature in features]
    return f"{outcomes.count('yes')} of {len(outcomes) - outcomes.count('–')}"


if __name__ == "__main__":
    named = (argument.partition("=") for argument in sys.argv[1:])
    print(table({name: Path(report) for name, _, report in named}))
