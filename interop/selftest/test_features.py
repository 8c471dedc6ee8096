"""The table client × feature."""

from pathlib import Path

from interop.features import table

REPORT = """<testsuites><testsuite tests="3">
<testcase name="test_send"/>
<testcase name="test_retry_in_order"><failure message="late"/></testcase>
<testcase name="test_tags"><skipped message="the client does not support: tags"/></testcase>
</testsuite></testsuites>"""


def test_cases_are_rows_and_clients_are_columns(tmp_path: Path) -> None:
    report = tmp_path / "go.xml"
    report.write_text(REPORT)
    assert table({"go": report, "cpp": tmp_path / "missing.xml"}).splitlines() == [
        "|  | go | cpp |",
        "| --- | --- | --- |",
        "| send | yes | no |",
        "| retry in order | no | no |",
        "| tags | – | no |",
        "| **passed** | 1 of 2 | 0 of 3 |",
    ]
