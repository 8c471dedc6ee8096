"""The main job: how it judges its result, and the commands that it prints at its end."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lanemq.checker.verdict import GroupAccount, Report, Verdict
from lanemq.testing.demo import summary
from lanemq.testing.demo.plan import CONSUMER_GROUP
from lanemq.testing.demo.result import TableVerdict, Transition, compare
from lanemq.testing.demo.run import DemoRun, start_console
from lanemq.testing.demo.summary import pipeline_totals
from lanemq.testing.order_life import OrderTruth

TRUTH = {"a": OrderTruth("cancelled", 2, 30)}
LIFE = [Transition("a", 1, None, "created", 10), Transition("a", 2, "created", "cancelled", 30)]


def printed(folder: Path, verdicts: summary.Verdicts | None = None) -> list[str]:
    out = io.StringIO()
    good = summary.Verdicts(TableVerdict(1, 2), Report(Verdict.PASS, 1), 0, {})
    run = DemoRun(folder, 1, "127.0.0.1:9", marks={"start": 0.0, "done": 1.0})
    summary.show(run, verdicts or good, Console(file=out, width=30))
    return out.getvalue().splitlines()


def test_a_table_equal_to_the_expected_result_passes() -> None:
    assert compare(LIFE, TRUTH).passed


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([], "0 of 2"),
        (LIFE[:1], "1 of 2"),
        ([*LIFE, LIFE[1]], "3 of 2"),
        ([LIFE[0], LIFE[1]._replace(before=None)], "was applied after None, not after created"),
        ([LIFE[0], LIFE[1]._replace(total=31)], "ended as cancelled/31"),
        ([LIFE[0]._replace(status="paid"), LIFE[1]._replace(before="paid")], "paid .seq 1. was applied after None"),
        ([*LIFE, Transition("b", 1, None, "created", 1)], "never sent"),
    ],
    ids=["empty", "one missing", "one twice", "wrong predecessor", "wrong total", "illegal", "unknown order"],
)
def test_a_table_that_differs_from_the_expected_result_fails(rows: list[Transition], wrong: str) -> None:
    verdict = compare(rows, TRUTH)
    assert not verdict.passed
    with pytest.raises(AssertionError, match=wrong):
        raise AssertionError("; ".join(verdict.wrong))


def test_without_orders_it_does_not_pass() -> None:
    assert not compare([], {}).passed


@pytest.mark.parametrize("verdict", [Verdict.VIOLATION, Verdict.UNKNOWN])
def test_a_correct_table_does_not_pass_with_a_bad_history(verdict: Verdict) -> None:
    verdicts = summary.Verdicts(TableVerdict(1, 2), Report(verdict, 1), 0, {})
    assert not verdicts.passed
    assert printed(Path("var/demo"), verdicts)[-1] == "FAIL"


def test_it_does_not_pass_if_the_pipeline_missed_repeated_events() -> None:
    good = summary.Verdicts(TableVerdict(1, 2), Report(Verdict.PASS, 1), 3, {"repeats": 3})
    assert good.passed
    assert not replace(good, pipeline={"repeats": 2}).passed


def test_counts_of_the_pipeline_are_added_up_over_its_batches(tmp_path: Path) -> None:
    log = tmp_path / "pipeline.log"
    lines = [
        '{"batch":0,"counts":{"repeats":2},"repeated":false}',
        '{"batch":1,"counts":{"repeats":3},"repeated":true}',
    ]
    log.write_text("\n".join(["a warning", *lines]))
    assert pipeline_totals(log) == {"batches": 2, "repeats": 5, "replayed": 1}


def test_a_command_is_on_one_line_however_narrow_the_terminal() -> None:
    folder = Path("var") / ("demo" * 20)
    check, broker, status = [line for line in printed(folder) if "lanemq " in line]
    assert check.endswith(f"lanemq check {folder}/history --drained --foreign-members")
    assert status.endswith(f"lanemq pipeline status {folder}/checkpoint")
    assert broker.endswith(f"lanemq broker --data {folder}/data --listen 127.0.0.1:9"), "where the checkpoint looks"


def test_the_command_has_its_path_if_the_shell_would_not_find_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lanemq").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(summary.sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "")
    assert shutil.which("lanemq") is None
    assert summary.lanemq_command() == "bin/lanemq"


def test_redelivery_is_called_expected_only_if_there_was_any() -> None:
    assert "this time the kill left nothing to deliver again" in " ".join(printed(Path("var/demo")))
    report = Report(Verdict.PASS, 1, groups={CONSUMER_GROUP: GroupAccount(redelivered={"crash": 3})})
    some = summary.Verdicts(TableVerdict(1, 2), report, 0, {})
    assert "redelivery after a kill is expected" in " ".join(printed(Path("var/demo"), some))


def test_the_run_goes_on_without_a_console_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = DemoRun(tmp_path, 1, address="127.0.0.1:1")
    start = run.start
    monkeypatch.setattr(DemoRun, "start", lambda _, name, *__: start(name, "lanemq.cli.main", "no-such-command"))
    assert start_console(run, tmp_path).startswith("no page (")
    assert "console" not in run.processes
