"""The order check: the continuous one, that of an upload, and what Home and the page say about a broken promise."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import BASE, HOSTILE
from tests.console.histories import write_history

from lanemq.clock import SystemClock
from lanemq.console.protection import Sessions
from lanemq.console.reading import ConsoleReads, Watch
from lanemq.console.routes.check import CHECK_EVERY, FIRST_SECONDS, SHARE_OF_TIME, keep_checking, run_check
from lanemq.console.screens import Console
from lanemq.console.settings import ConsoleSettings
from lanemq.console.snapshot import Snapshot, SnapshotReader
from lanemq.console.trends import Trends
from lanemq.console.views.check import CheckReport, GroupFacts, check_view
from lanemq.console.views.home import OrderVerdict, Tile, home_view
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis

PASS = CheckReport("pass", 14)
BROKEN = CheckReport("violation", 14, counts={"B2": 1})


class HandClock(SystemClock):
    """A clock that a check moves."""

    passed = 0

    def now(self) -> Millis:
        return Millis(self.passed)


class Checks:
    """A checker with results to give, one after the other, and the pauses that were made between them."""

    def __init__(self, *results: CheckReport | Exception, took: int = 0) -> None:
        self.results, self.took, self.clock = list(results), took, HandClock()
        self.tiles: list[Tile] = []
        self.pauses: list[float] = []

    def check(self, paths: Sequence[Path]) -> CheckReport:
        self.clock.passed += self.took
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def run(self, history: Path, rounds: int = 0) -> Console:
        """Checks for so many rounds, or until there are no more results; keeps what Home's tile says after each."""

        async def checked() -> Console:
            settings = ConsoleSettings("localhost:1", history=history)
            watch = Watch(SnapshotReader("localhost:1", self.clock), self.clock, every=1)
            sessions, reads = Sessions("token", self.clock), ConsoleReads(self.clock)
            console = Console(
                settings=settings,
                clock=self.clock,
                sessions=sessions,
                reading=reads,
                searching=reads,
                pipeline_reading=reads,
                watch=watch,
                stopping=asyncio.Event(),
            )

            async def sleep(seconds: float) -> None:
                self.pauses.append(seconds)
                self.tiles.append(home_view(Snapshot(Millis(0)), Trends(), console.verdict).tiles[-1])
                if len(self.pauses) == rounds if rounds else not self.results:
                    raise asyncio.CancelledError

            try:
                await keep_checking(console, check=self.check, sleep=sleep)
            except asyncio.CancelledError:
                return console
            finally:
                reads.close()
            raise AssertionError

        return asyncio.run(checked())


@pytest.fixture
def history(tmp_path: Path) -> Path:
    write_history(tmp_path)
    return tmp_path


def test_a_check_that_fails_after_a_good_one_is_not_shown_as_good(history: Path) -> None:
    checks = Checks(PASS, LaneError("it took longer than 120 s, and was ended"), PASS)
    checks.run(history)
    assert [(tile.answer, tile.level) for tile in checks.tiles] == [
        ("0 violations", "good"),
        ("Not checked", "warn"),
        ("0 violations", "good"),
    ]
    assert checks.tiles[1].detail == "the newest check failed"


def test_a_check_that_fails_hides_no_violation(history: Path) -> None:
    checks = Checks(BROKEN, OSError("no more processes"))
    console = checks.run(history)
    assert [(tile.answer, tile.level) for tile in checks.tiles] == [("1 violation", "bad")] * 2
    assert console.verdict is not None
    assert console.verdict.problem == "no more processes"


def test_a_history_that_is_gone_is_not_shown_as_good(history: Path) -> None:
    class Deleting(Checks):
        def check(self, paths: Sequence[Path]) -> CheckReport:
            for path in history.glob("*.jsonl"):
                path.unlink()
            return super().check(paths)

    checks = Deleting(PASS)
    console = checks.run(history, rounds=2)
    assert [tile.level for tile in checks.tiles] == ["good", "warn"]
    assert console.verdict is not None
    assert "has no history any more" in console.verdict.problem


def test_a_folder_without_a_history_yet_is_no_problem(tmp_path: Path) -> None:
    checks = Checks()
    assert checks.run(tmp_path, rounds=1).verdict is None
    assert (checks.tiles[0].answer, checks.tiles[0].level) == ("Not checked", "none")
    assert checks.pauses == [FIRST_SECONDS]


def test_checks_are_far_apart_and_take_a_tenth_of_the_time_at_most(history: Path) -> None:
    quick = Checks(PASS, LaneError("no"), took=100)
    quick.run(history)
    assert quick.pauses == [CHECK_EVERY, FIRST_SECONDS]
    slow = Checks(PASS, LaneError("no"), took=9_000)
    slow.run(history)
    assert slow.pauses == [9.0 * SHARE_OF_TIME] * 2


def test_a_check_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(LaneError, match=r"the history could not be checked: Invalid value .*missing.* does not exist"):
        run_check([tmp_path / "missing"])


# the page


def test_groups_whose_members_recorded_nothing_are_named(client: TestClient) -> None:
    """The promises of the others are kept, and the page does not say so of all."""
    report = CheckReport("pass", 14, groups={"Billing": GroupFacts(undecided=2), "shipping": GroupFacts(finished=3)})
    view = check_view(report)
    assert view.unjudged.startswith("Some members of Billing recorded no history.")
    assert view.explained.endswith("found no broken promise.")
    kept = check_view(CheckReport("pass", 14, groups={"shipping": GroupFacts(finished=3)}))
    assert (kept.unjudged, kept.explained.endswith("found every promise kept.")) == ("", True)
    console: Console = client.app.state.console
    before, console.report = console.report, report
    try:
        assert view.unjudged in client.get("/check").text
    finally:
        console.report = before


def test_a_reason_keeps_the_names_that_it_has(client: TestClient) -> None:
    console: Console = client.app.state.console
    before, console.report = console.report, CheckReport("unknown", 14, reasons=["group Billing: nothing is known"])
    try:
        assert "<p>Group Billing: nothing is known</p>" in client.get("/check").text
    finally:
        console.report = before


def upload(client: TestClient, *paths: Path) -> tuple[int, str]:
    secret = re.search(r'name="secret" value="([^"]+)"', client.get("/check").text)
    assert secret is not None
    files = [("history", (path.name, path.read_bytes())) for path in paths]
    answer = client.post("/check", data={"secret": secret[1]}, files=files, headers={"origin": BASE})
    return answer.status_code, answer.text


def test_an_uploaded_history_is_judged_in_words_with_the_events_around_the_violation(
    signed_in: TestClient, tmp_path: Path
) -> None:
    write_history(tmp_path, (0, 2, 1), key=HOSTILE)
    status, text = upload(signed_in, *tmp_path.glob("*.jsonl"))
    assert status == 200
    assert "1 violation" in text
    assert "From 2 uploaded files" in text
    assert "messages of a key run for the first time in stored order" in text
    assert "ran for the first time after offset 2 of the same key" in text
    assert re.search(r"&gt; +\+0\.000 ms +worker-1 +turn +offset=1", text)
    assert "<script>alert" not in text


def test_an_uploaded_history_in_order_passes_and_none_is_refused(signed_in: TestClient, tmp_path: Path) -> None:
    write_history(tmp_path / "good")
    status, text = upload(signed_in, *(tmp_path / "good").glob("*.jsonl"))
    assert (status, "No violation" in text) == (200, True)
    (tmp_path / "empty.jsonl").touch()
    status, text = upload(signed_in, tmp_path / "empty.jsonl")
    assert (status, "choose one or more .jsonl files" in text) == (400, True)


def test_the_page_says_that_the_newest_check_failed_and_when_the_shown_one_was(client: TestClient) -> None:
    console: Console = client.app.state.console
    before = console.verdict, console.report
    console.verdict = OrderVerdict("pass", 14, 0, Millis(SystemClock().wall() - 180_000), "it was ended")
    console.report = PASS
    try:
        text = client.get("/check").text
        assert re.search(
            r"The newest check failed\.</strong> it was ended\. What follows is the result of 3 min ago", text
        )
        assert "Not checked" in client.get("/").text
    finally:
        console.verdict, console.report = before


def test_home_does_not_ask_for_a_history_that_it_was_given(client: TestClient) -> None:
    console: Console = client.app.state.console
    before, console.verdict = console.verdict, None
    try:
        text = client.get("/").text
        assert "the first check is not done" in text
        assert "start the console with --history" not in text
    finally:
        console.verdict = before
