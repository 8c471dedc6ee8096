"""Pipelines in the console: keys that wait and dead letters are listed, inspected, redriven and discarded."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from tests.console.conftest import BASE, HOSTILE, TOKEN, Stage, until
from tests.console.pipelines import given_up, parked_keys
from tests.console.test_event_streams import Stream
from tests.pipelines.stages.transitions import pipeline_fixture
from tests.pipelines.stages.transitions.dead_letter_fixture import DeadLetterPipeline

from lanemq.cli.main import main
from lanemq.client.admin.admin import Admin
from lanemq.clock import wall_time
from lanemq.console import pipeline_reading
from lanemq.console.app import console_app
from lanemq.console.settings import ConsoleSettings
from lanemq.console.views.pipelines import lane_change
from lanemq.core.lane_status import LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.pipelines import LaneState, ParkedLanes, dead_letters, parked
from lanemq.pipelines.operate import status
from lanemq.pipelines.operate.parked import WaitingKey
from lanemq.pipelines.operate.status import PipelineQueue, PipelineStatus
from lanemq.wire.signing import Credentials

OURS = {"origin": BASE}
LETTER = "orders/broker-a/0/0"
GROUP = "spark-orders"
"""As which the first pipeline commits. No broker has it, until a test makes it."""


@dataclass
class Opened:
    """A console of two pipelines: the first has parked keys, the second has dead letters."""

    client: TestClient
    parked: pipeline_fixture.Pipeline
    dead: DeadLetterPipeline
    folders: tuple[Path, Path]

    def page(self, path: str, **named: str) -> str:
        answer = self.client.get(f"/pipelines/{path}?{urlencode(named)}")
        assert answer.status_code == 200, answer.text
        return answer.text

    def form(self, page: str) -> dict[str, str]:
        found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
        return {name: value.replace("&#34;", '"').replace("&lt;", "<").replace("&gt;", ">") for name, value in found}

    def send(self, number: int, form: dict[str, str]) -> int:
        path = f"/pipelines/{number}/change"
        return self.client.post(path, data=form, headers=OURS, follow_redirects=False).status_code


@pytest.fixture
def opened(stage: Stage, tmp_path: Path) -> Iterator[Opened]:
    folders = tmp_path / "parked", tmp_path / "dead"
    keys, letters = parked_keys(folders[0], group=GROUP), given_up(folders[1])
    app = console_app(ConsoleSettings(stage.address, every=0.2, pipelines=folders), TOKEN)
    with TestClient(app, base_url=BASE, client=("127.0.0.1", 50000)) as client:
        client.post("/sign-in", data={"token": TOKEN, "then": "/"}, headers=OURS, follow_redirects=False)
        yield Opened(client, keys, letters, folders)


def test_keys_and_dead_letters_are_listed_and_shown_with_their_bodies(opened: Opened) -> None:
    overview = opened.client.get("/pipelines").text
    assert "2 keys parked" in overview
    assert 'href="/pipelines/1"' in overview
    listed = opened.page("0")
    assert listed.count("attempt 1 failed") == 2
    assert "&lt;script&gt;alert(1)" in listed
    key = opened.page("0/key", key="a")
    assert "Discard all 2" in key
    assert "&#34;fails&#34;: 99" in key
    assert "No message of this key waits" in opened.page("0/key", key="c")
    letters = opened.page("1")
    assert letters.count("attempt 1 failed") == 3
    letter = opened.page("1/dead-letter", id=LETTER)
    assert "&#34;fails&#34;: 1" in letter


def test_the_pages_of_pipelines_have_batch_rows_per_second_lag_and_a_link_to_spark(opened: Opened) -> None:
    console = opened.client.app.state.console  # type: ignore[attr-defined]
    names = {"Last batch", "Rows", "Behind", "Late", "Starts", "Waiting keys", "Dead letters"}
    assert names <= facts(opened.page("0")).keys()
    now, _ = console.pipelines[str(opened.folders[0])]
    begun, further = (
        msgspec.structs.replace(now.status, queues=tuple(PipelineQueue("orders", "b", *queue) for queue in queues))
        for queues in ([(0, 5000)], [(0, 6200), (1, 70_000)])
    )
    before, after = replace(now, at=now.at - 10_000, status=begun), replace(now, status=further)
    console.pipelines[str(opened.folders[0])] = after, before
    console.settings = replace(console.settings, spark_page="http://127.0.0.1:4040")
    page = opened.page("0")
    # a queue that was not there before may begin at any offset
    assert facts(page)["Rows"] == facts(opened.client.get("/pipelines").text)["Rows"] == "120/s"
    assert 'href="http://127.0.0.1:4040" rel="noreferrer">Spark\'s page</a>' in page


def facts(page: str) -> dict[str, str]:
    """The figures of a page by their names; of a list, those of the first entry."""
    found = re.findall(r"<dt>([A-Za-z ]+?)(?: <button[^>]*>\?</button>)?</dt><dd>([^<]*)</dd>", page)
    return dict(reversed(found))


def test_home_waiting_and_the_pages_of_keys_have_what_waits_in_pipelines(opened: Opened) -> None:
    waiting = opened.client.get("/waiting").text
    assert waiting.count('href="/pipelines/0/key?key=') == 4, "each of two keys has two links"
    assert "&lt;script&gt;alert(1)" in waiting
    assert re.search(
        r'"/pipelines/1">[^<]+</a> <span class="dim">pipeline</span></th><td class="num" data-label="Count">3<', waiting
    )
    console = opened.client.app.state.console  # type: ignore[attr-defined]
    of_groups = sum(lane.status is LaneStatus.PARKED for lane in console.watch.now.parked)
    assert f"{of_groups + 2} keys" in opened.client.get("/").text
    portal = opened.client.portal
    assert portal is not None
    parked_key, dead_key = portal.call(pipeline_reading.key_in_pipelines, console, "orders", "a")
    queue = MessageQueue("orders", "broker-a", 0)
    assert [parked_key.step(queue, offset)[0] for offset in (0, 1)] == ["parked", "parked"]
    assert [dead_key.step(queue, offset)[0] for offset in (0, 1)] == ["dead letter", "dead letter"]
    opened.send(0, opened.form(opened.page("0/change", action="redrive", key="a")))
    assert "redrive asked for" in opened.client.get("/waiting").text


def test_a_pipeline_that_cannot_be_read_is_named_and_not_taken_for_one_without_waiting_keys(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[object]()

    def fails(lanes: ParkedLanes, *_: object) -> PipelineStatus:
        asked.append(lanes)
        raise OSError("the disk is away")

    monkeypatch.setattr(status, "read_status", fails)
    for _ in range(3):
        assert "pipeline parked was not read: OSError: the disk is away" in opened.client.get("/waiting").text
    assert len(asked) == 2, "a pipeline that cannot be read is not asked again with every page"
    assert "2 pipelines were not read" in opened.client.get("/").text


def test_a_page_waits_a_moment_for_a_slow_pipeline_and_has_it_when_it_is_read(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading is let go after the page was answered: a page that waited for it would make it overdue."""
    read, show, let_go, overdue = status.read_status, ParkedLanes.show, threading.Event(), list[object]()

    def wait(what: object) -> None:
        if not let_go.wait(10):
            overdue.append(what)

    def slow(lanes: ParkedLanes, *more: Any) -> PipelineStatus:
        wait(lanes)
        return read(lanes, *more)

    def slow_key(lanes: ParkedLanes, key: str) -> LaneState:
        wait(key)
        return show(lanes, key)

    def page() -> str:
        return opened.client.get("/key?topic=orders&key=a").text

    monkeypatch.setattr(status, "read_status", slow)
    monkeypatch.setattr(ParkedLanes, "show", slow_key)
    monkeypatch.setattr(pipeline_reading, "MAX_WAIT", 0.02)
    assert opened.client.get("/pipelines").text.count("its checkpoint was not read in time. The page tries again") == 2
    assert page().count("Not known: its checkpoint was not read in time. The page tries again.") == 2
    let_go.set()
    until("both pipelines to be read", lambda: "not read" not in page())
    assert "Waits for a person: it was parked. 2 messages wait, in order." in page()
    let_go.clear()
    opened.client.app.state.console.pipeline_reading._answers.clear()  # type: ignore[attr-defined]
    assert "Not known: its checkpoint was not read in time. The page tries again." in page(), (
        "the status is known, not the key"
    )
    assert overdue == []
    let_go.set()


def test_an_open_page_of_a_pipeline_shows_a_change_and_reads_its_checkpoint_no_more_often(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a new snapshot of the brokers every 0.2 s."""
    read, asked, portal = status.read_status, list[object](), opened.client.portal
    assert portal is not None

    def counted(lanes: ParkedLanes, *more: Any) -> PipelineStatus:
        asked.append(lanes)
        return read(lanes, *more)

    async def opens() -> Stream:
        return Stream(opened.client.app, "/live/pipelines/0", "127.0.0.1")

    async def shows(text: str) -> None:
        while text not in await stream.body():
            pass

    async def events(count: int) -> None:
        for _ in range(count):
            await stream.body()

    monkeypatch.setattr(status, "read_status", counted)
    stream = portal.call(opens)
    assert portal.call(stream.status) == 200
    portal.call(shows, "attempt 1 failed")
    portal.call(events, 3)
    assert len(asked) == 1
    opened.send(0, opened.form(opened.page("0/change", action="redrive", key="a")))
    portal.call(shows, "redrive asked for")
    portal.call(stream.leave)


def test_a_checkpoint_is_read_and_changed_without_spark(opened: Opened, stage: Stage) -> None:
    """In a process of its own, because the tests around this one have loaded PySpark."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, stage.address, *map(str, opened.folders)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "no pyspark\n"), done.stderr
    assert parked(opened.folders[0]).requested() == {"a": "redrive"}


WITHOUT_SPARK = """
import pathlib, sys
from starlette.testclient import TestClient
from lanemq.cli.main import main
from lanemq.console.app import console_app
from lanemq.console.settings import ConsoleSettings
from lanemq.pipelines import parked

server, *places = sys.argv[1:]
settings = ConsoleSettings(server, pipelines=tuple(map(pathlib.Path, places)))
with TestClient(console_app(settings, "token"), base_url="http://127.0.0.1:9870", client=("127.0.0.1", 50000)) as pages:
    for path in ("/", "/waiting", "/pipelines", "/pipelines/0", "/pipelines/0/key?key=a", "/pipelines/1",
                 "/pipelines/1/dead-letter?id=orders/broker-a/0/0", "/pipelines/1/change?action=redrive-dead"):
        assert pages.get(path).status_code == 200, path
parked(places[0]).redrive("a")
sys.stdout = open("/dev/null", "w")
for words in (["status"], ["parked", "list"], ["dead-letters", "list"], ["state"]):
    main(["pipeline", *words, "--", places[1]], standalone_mode=False)
sys.stdout = sys.__stdout__
print("pyspark" if "pyspark" in sys.modules else "no pyspark")
"""


def test_a_pipeline_counts_for_its_group_on_the_command_line_as_in_the_console(opened: Opened, stage: Stage) -> None:
    words = ["group", "list", "--server", stage.address, "--pipeline", str(opened.folders[0])]
    assert f"commits as group {GROUP}, which no broker has yet: its 0 held keys and 2 parked keys" in said(words)
    with Admin(stage.address) as admin:
        admin.reset_offsets(GROUP, "returns", to="last")
        try:
            listed = msgspec.json.decode(said([*words, "--json"]))
            (group,) = [each for each in listed if each["group"] == GROUP]
            assert (group["held"], group["parked"], group["dead"]) == (0, 2, None), "dead letters are not in there"
            until("the console to count it", lambda: counts(opened.client.get("/groups").text) == ["0", "2", "unknown"])
        finally:
            admin.delete_group(GROUP)


def said(words: list[str]) -> str:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def counts(page: str) -> list[str]:
    """What the list of groups says about the pipeline's group."""
    row = re.search(rf'<a href="/groups/{GROUP}">.*?</tr>', page, re.DOTALL)
    cells = re.findall(r'data-label="([\w ]+)">(.*?)</td>', row[0] if row else "", re.DOTALL)
    texts = {name: re.sub(r"<[^>]+>", "", text).strip() for name, text in cells}
    return [texts.get(name, "").split(" ")[0] for name in ("Held", "Parked", "Dead letters")]


def test_what_a_browser_must_not_name_is_not_found(opened: Opened) -> None:
    paths = ("2", "-1", "0/key?key=none", "0/key?key=%00", "1/dead-letter?id=none")
    for path in (*paths, "1/change?action=redrive-dead&id=none"):
        assert opened.client.get(f"/pipelines/{path}").status_code == 404, path
    assert opened.client.get("/pipelines/0/change?action=remove").status_code == 400


def test_a_key_is_redriven_after_its_preview(opened: Opened) -> None:
    page = opened.page("0/change", action="redrive", key="a")
    assert "2 messages will be passed to the step again, in order, before newer messages of the key" in page
    lanes = parked(opened.folders[0])
    assert lanes.requested() == {}, "a preview asks for nothing"
    assert opened.send(0, opened.form(page)) == 303
    assert lanes.requested() == {"a": "redrive"}
    assert "redrive asked for" in opened.page("0")


@pytest.mark.parametrize(
    ("action", "key", "said", "asked"),
    [
        ("discard", HOSTILE, "1 message will become a dead letter", {HOSTILE: "discard"}),
        ("discard-first", "a", "1 later message will be retried", {"a": "discard_first"}),
        ("discard", "", "3 messages will become dead letters", {"a": "discard", HOSTILE: "discard"}),
    ],
)
def test_messages_are_discarded_after_their_preview(
    opened: Opened, action: str, key: str, said: str, asked: dict[str, str]
) -> None:
    page = opened.page("0/change", action=action, key=key)
    assert said in page
    form = opened.form(page) | {"key": key}
    assert opened.send(0, form) == 303
    assert parked(opened.folders[0]).requested() == asked


def test_dead_letters_are_redriven_once_after_their_preview(opened: Opened) -> None:
    page = opened.page("1/change", action="redrive-dead", key="a")
    assert "Redrive 2 dead letters of 1 key" in page
    letters = dead_letters(opened.folders[1])
    assert opened.send(1, opened.form(page)) == 303
    assert letters.requested() == 2
    assert opened.client.get("/pipelines/1/change?action=redrive-dead&key=a").status_code == 404
    assert opened.send(1, opened.form(opened.page("1/change", action="redrive-dead"))) == 303
    assert letters.requested() == 3
    opened.dead.process_retry_pass()
    assert letters.counts() == {"open": 3, "redriven": 3}, "they failed again"


def test_nothing_is_done_if_it_is_not_what_the_page_showed(opened: Opened) -> None:
    form = opened.form(opened.page("0/change", action="discard", key="a"))
    opened.parked.process(pipeline_fixture.Sent(0, 4, "a", 5))
    assert opened.send(0, form) == 409
    assert parked(opened.folders[0]).requested() == {}


def test_control_without_the_comparison_the_message_that_joined_is_discarded_too(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.console.views.pipelines.PipelineChange.shown", "always the same")
    form = opened.form(opened.page("0/change", action="discard", key="a"))
    opened.parked.process(pipeline_fixture.Sent(0, 4, "a", 5))
    assert opened.send(0, form) == 303


def test_a_change_needs_the_token_and_not_a_user_of_the_broker(opened: Opened) -> None:
    form = opened.form(opened.page("0/change", action="redrive", key="a"))
    sessions = opened.client.app.state.console.sessions  # type: ignore[attr-defined]
    (session,) = sessions._open.values()
    session.credentials = Credentials("user", "secret-of-a-user")
    assert opened.send(0, form) == 403
    opened.client.cookies.clear()
    assert opened.send(0, form) == 403
    assert parked(opened.folders[0]).requested() == {}


def test_a_change_without_a_key_is_about_all() -> None:
    lanes = [
        WaitingKey(key, "shard", state, "x", messages, 1, wall_time(Millis(0)), None, None)
        for key, state, messages in (("a", "parked", 2), ("b", "held", 3))
    ]
    assert lane_change("redrive", "", lanes).shown == "5 messages of 2 keys, 5 wait"
    assert lane_change("discard-first", "b", lanes).shown == "1 message of 1 key, 3 wait"
