"""Promise 12: order can be checked, by a program that knows nothing of the code under test."""

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.members import LocalGroup, until
from tests.chaos.roles import FOUR_QUEUES
from tests.chaos.system import GROUP, TOPIC, complaint

from lanemq import Admin, App, Producer, ToDeadLetter, checker
from lanemq.broker.config import BrokerOptions
from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Report, Verdict
from lanemq.client.admin.dead_letters import read_dead_letters, send_again
from lanemq.clock import SystemClock, machine_of
from lanemq.history import open_history
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

Lines = list[dict[str, Any]]


@pytest.fixture
def lines(group: LocalGroup, tmp_path: Path) -> Lines:
    """The history of a real consumer of 40 messages with 4 keys."""
    sent = open_history(tmp_path / "history", "p", SystemClock().now_ns, role="producer")
    for number in range(40):
        receipt = group.producer.send(TOPIC, number, key=f"k{number % 4}")
        sent.send(TOPIC, receipt.key or "", receipt.message_id)
        sent.acked(TOPIC, receipt.key or "", receipt.message_id, receipt.queue.queue_id, receipt.offset)
    sent.close()
    group.member("a")
    until("all are done", lambda: len(group.done) == 40)
    report = group.judge()
    assert report.verdict is Verdict.PASS, complaint(report)
    return [json.loads(line) for line in (tmp_path / "history" / "a.jsonl").read_text().splitlines()]


def judge(lines: Lines, folder: Path) -> Report:
    """The verdict on a history with these lines, renumbered, and the lines of the producer."""
    folder.mkdir()
    shutil.copy(folder.parent / "history" / "p.jsonl", folder)
    times = sorted(line["t"] for line in lines)
    text = "".join(json.dumps({**line, "n": n, "t": times[n]}) + "\n" for n, line in enumerate(lines))
    (folder / "a.jsonl").write_text(text)
    return check([folder], CheckOptions(drained=True))


def turns(lines: Lines, kind: str) -> list[int]:
    return [at for at, line in enumerate(lines) if line["e"] == kind and line["key"] == "k1"]


def swap_two_turns(lines: Lines) -> None:
    for kind in ("turn", "turn_end"):
        first, second = turns(lines, kind)[2:4]
        lines[first], lines[second] = lines[second], lines[first]


def forget_a_turn(lines: Lines) -> None:
    for at in sorted((turns(lines, "turn")[3], turns(lines, "turn_end")[3]), reverse=True):
        del lines[at]


def forget_an_end(lines: Lines) -> None:
    del lines[turns(lines, "turn_end")[3]]


def overlap(lines: Lines) -> None:
    end, following = turns(lines, "turn_end")[2], turns(lines, "turn")[3]
    lines.insert(following, lines.pop(end))


def run_twice(lines: Lines) -> None:
    begin, end = turns(lines, "turn")[2], turns(lines, "turn_end")[2]
    lines[end + 1 : end + 1] = [dict(lines[begin]), dict(lines[end])]


def change_a_key(lines: Lines) -> None:
    for kind in ("turn", "turn_end"):
        lines[turns(lines, kind)[2]]["key"] = "another"


def leave_out_a_queue(lines: Lines) -> None:
    queue = lines[turns(lines, "turn")[0]]["queue"]
    lines[:] = [line for line in lines if line.get("queue") != queue]


@pytest.mark.parametrize(
    ("tamper", "invariants"),
    [
        (swap_two_turns, "B2 B3"),
        (forget_a_turn, "S1 B2 D2"),
        (forget_an_end, "B3 B5 D2"),
        (overlap, "B3 B5"),
        (run_twice, "E3 B2 B4"),
        (change_a_key, "S5"),
        (leave_out_a_queue, "L1"),
    ],
)
def test_the_checker_finds_what_was_changed_in_a_real_history(
    lines: Lines, tmp_path: Path, tamper: Callable[[Lines], None], invariants: str
) -> None:
    """ "… reports the first violation of any of these", with its place."""
    assert judge(lines, tmp_path / "clean").verdict is Verdict.PASS
    tamper(lines)
    report = judge(lines, tmp_path / "tampered")
    assert report.verdict is Verdict.VIOLATION
    first = report.violations[0]
    assert first.invariant in invariants.split(), complaint(report)
    assert (first.topic, first.group) == (TOPIC, GROUP)


def test_counting_messages_would_not_see_an_inversion(lines: Lines) -> None:
    """Negative control: after a swap there are still as many messages out as in, and none twice."""
    before = sorted((line["queue"], line["offset"]) for line in lines if line["e"] == "turn_end")
    swap_two_turns(lines)
    after = [(line["queue"], line["offset"]) for line in lines if line["e"] == "turn_end"]
    assert sorted(after) == before
    assert len(set(after)) == len(after)


@pytest.fixture
def delayed_run(tmp_path: Path) -> Path:
    """The history of a run with default settings in which two of four messages of a key were delayed."""
    history = tmp_path / "history"
    options = BrokerOptions(tmp_path / "data", listen=Address("127.0.0.1", 0), history=history)
    got: list[int] = []
    with EmbeddedBroker(options) as broker, Producer(broker.address, history=history, create=FOUR_QUEUES) as producer:
        for number in range(4):
            producer.send(TOPIC, number, key="k", delay_level=(number + 1) % 2)
        app = App(broker.address, group=GROUP, history=history)

        @app.ordered(TOPIC)
        def on_message(number: int) -> None:
            got.append(number)
            if len(got) == 4:
                app.stop()

        app.run()
    assert got == [1, 3, 0, 2]
    return history


def test_delayed_messages_are_no_violation(delayed_run: Path) -> None:
    report = check([delayed_run], CheckOptions(drained=True))
    assert report.verdict is Verdict.PASS, complaint(report)


def test_a_message_stored_so_late_would_be_a_violation_if_it_were_not_delayed(delayed_run: Path) -> None:
    """Negative control: the same history without the mark of delayed sends."""
    for path in delayed_run.iterdir():
        path.write_text(path.read_text().replace(',"delay":1', ""))
    assert check([delayed_run]).counts.get("B1"), complaint(check([delayed_run]))


def run_with(folder: Path, **member: Any) -> Path:
    """The history of a broker and a producer, and of a member with these options, which commits twice."""
    history = folder / "history"
    options = BrokerOptions(folder / "data", listen=Address("127.0.0.1", 0), history=history)
    with EmbeddedBroker(options) as broker, Producer(broker.address, history=history, create=FOUR_QUEUES) as producer:
        for _ in range(2):
            for number in range(4):
                producer.send(TOPIC, number, key="k")
            consume(broker.address, 4, **member)
    return history


def consume(address: str, count: int, *, tags: str = "*", **member: Any) -> None:
    app = App(address, group=GROUP, **member)
    got: list[int] = []

    @app.ordered(TOPIC, tags=tags)
    def on_message(number: int) -> None:
        got.append(number)
        if len(got) == count:
            app.stop()

    app.run()


def test_a_member_without_a_history_has_not_lost_its_messages(tmp_path: Path) -> None:
    report = check([run_with(tmp_path)])
    assert not report.violations, complaint(report)
    assert report.verdict is Verdict.UNKNOWN
    assert f"group '{GROUP}': some of its members recorded no history" in report.reasons[-1]


def test_a_member_with_a_history_is_judged_by_the_lines_of_the_broker_too(tmp_path: Path) -> None:
    """Negative control: without the lines of one turn, its message is lost."""
    history = run_with(tmp_path, history=tmp_path / "history", client_id="member")
    report = check([history], CheckOptions(drained=True))
    assert report.verdict is Verdict.PASS, complaint(report)
    path = history / "member.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    machines = {line["machine"] for line in lines if line["e"] == "begin"}
    assert machines == {machine_of(SystemClock())}, "its lines name the clock that they were written by"
    kept = [line for line in lines if line["e"] not in ("turn", "turn_end") or line["offset"] != 5]
    n = 0
    for line in kept:
        n = line["n"] = 0 if line["e"] == "begin" else n + 1
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    report = check([history])
    assert report.verdict is Verdict.VIOLATION
    assert report.violations[0].invariant == "S1", complaint(report)
    assert "at offset 5 is acknowledged" in report.violations[0].text


def test_a_dead_letter_that_was_redriven_has_a_sender(tmp_path: Path) -> None:
    """The person who redrives it records no history, so the member's line says that it is a copy."""
    history = tmp_path / "history"
    options = BrokerOptions(tmp_path / "data", listen=Address("127.0.0.1", 0), history=history)
    with EmbeddedBroker(options) as broker, Producer(broker.address, history=history, create=FOUR_QUEUES) as producer:
        producer.send(TOPIC, 1, key="k")
        for failing in (True, False):
            run_once(broker.address, failing=failing, history=history)
            (letter,) = read_dead_letters(broker.address, GROUP)
            if failing:
                with Producer(broker.address, codec="bytes") as person:
                    send_again(person, letter)
    report = check([history])
    assert report.verdict is Verdict.PASS, complaint(report)
    assert (report.groups[GROUP].dead_lettered, report.groups[GROUP].finished) == (1, 1)
    for path in history.iterdir():
        path.write_text(path.read_text().replace(',"copy":1', ""))
    assert check([history]).counts == {"S2": 1}, "negative control: without the mark it was never sent"


def test_messages_that_a_tag_filter_leaves_out_are_not_lost(tmp_path: Path) -> None:
    history = tmp_path / "history"
    options = BrokerOptions(tmp_path / "data", listen=Address("127.0.0.1", 0), history=history)
    with EmbeddedBroker(options) as broker, Producer(broker.address, history=history, create=FOUR_QUEUES) as producer:
        for _ in range(2):
            for number in range(4):
                producer.send(TOPIC, number, key="k", tag=("paid", "sent")[number % 2])
            consume(broker.address, 2, tags="paid", history=history)
    report = check([history])
    assert report.verdict is Verdict.PASS, complaint(report)
    for path in history.iterdir():
        path.write_text(path.read_text().replace('"tags":"paid"', '"tags":"paid||sent"'))
    assert "S1" in check([history]).counts, "negative control: a filter that lets them through"


def run_once(address: str, *, failing: bool, history: Path) -> None:
    app = App(address, group=GROUP, history=history)

    @app.ordered(TOPIC)
    def on_message(number: int) -> None:
        if failing:
            raise ToDeadLetter("not today")

    with app, Admin(address) as admin:
        until("all is done", lambda: not (found := admin.describe_group(GROUP)).lag and bool(found.queues))


def test_a_run_without_turns_is_not_a_pass(tmp_path: Path) -> None:
    """An empty history proves nothing, so the verdict is unknown."""
    open_history(tmp_path, "idle", SystemClock().now_ns).close()
    assert check([tmp_path]).verdict is Verdict.UNKNOWN


def test_the_checker_imports_nothing_of_what_it_checks() -> None:
    """ "… knows nothing of the code under test.\""""
    for path in Path(checker.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name.startswith("lanemq")]
            assert all(name.startswith("lanemq.checker") for name in ours), (path.name, ours)
