"""Dead letters that are given to the step again: late, once, whatever crashes."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions.dead_letter_fixture import Kept
from tests.pipelines.stages.transitions.pipeline_fixture import Crash, Sent

from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines import (
    DeadLetter,
    DeltaSink,
    Event,
    Hold,
    Park,
    ParquetSink,
    Pipeline,
    Project,
    StateLimits,
    Topic,
    dead_letters,
    parked,
)
from lanemq.pipelines.batch import batch_number
from lanemq.pipelines.stages.transitions import redrives
from lanemq.pipelines.stages.transitions.redrives import Redrives
from lanemq.pipelines.stages.transitions.stage import Transitions

FAILS = {"n": 1, "fails": 99}
SKIP = DeadLetter(skip=True)
LETTER = "orders/broker-a/0/1"


def with_a_letter(folder: Path, **options: Any) -> Kept:
    """The key a without its second message, which nothing fails for any more."""
    pipeline = Kept(folder, **{"on_failure": SKIP} | options)
    pipeline.run(Sent(0, 0, "a", 0), Sent(0, 1, "a", FAILS), Sent(0, 2, "a", 2), Sent(0, 3, "b", 3))
    pipeline.restart(step=late_or_counting)
    return pipeline


def late_or_counting(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    """The step of `driving`, mended: nothing fails; a negative number of events says that the event came late."""
    state = {"seen": 0} if state is None else state
    state["seen"] += 1
    value = event.value if isinstance(event.value, dict) else {"n": event.value}
    return state, [{"key": event.key, "n": value["n"], "seen": -state["seen"] if event.late else state["seen"]}]


def test_a_redriven_letter_comes_behind_everything_of_its_key_and_says_that_it_is_late(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.run(Sent(0, 4, "a", 4))
    assert pipeline.stage.due(pipeline.clock.wall()) is None
    (asked,) = pipeline.letters.redrive(LETTER)
    assert (asked.key, asked.value) == ("a", None)
    assert pipeline.stage.due(pipeline.clock.wall()) == 0
    counts = pipeline.run_retry_pass()
    assert counts is not None
    assert (counts["redriven_letters"], counts["applied"]) == (1, 1)
    pipeline.run(Sent(0, 5, "a", 5))
    assert [(row["n"], row["seen"]) for row in pipeline.sink.rows() if row["key"] == "a"] == [
        (0, 1), (2, 2), (4, 3), (1, -4), (5, 5),
    ]  # fmt: skip
    assert pipeline.stage.due(pipeline.clock.wall()) is None


def test_a_letter_is_redriven_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.letters.redrive(LETTER)
    with pytest.raises(UsageError, match="redriven already, or will be"):
        pipeline.letters.redrive(LETTER)
    assert pipeline.letters.redrive(everything=True) == []
    pipeline.run_retry_pass()
    with pytest.raises(UsageError, match="redriven already"):
        pipeline.letters.redrive(key="a")
    assert pipeline.run_retry_pass() is None
    assert pipeline.outputs("a") == [0, 2, 1]
    assert pipeline.letters.records() == []
    assert [each.state for each in pipeline.letters.records(redriven=True)] == ["redriven"]
    assert pipeline.letters.counts() == {"redriven": 1}


def test_of_persons_who_ask_at_once_one_is_taken(tmp_path: Path) -> None:
    """Each has seen the letter as open before any of them asks."""
    pipeline = with_a_letter(tmp_path)
    (letter,) = redrives_of(pipeline)
    gate, taken = threading.Barrier(4), list[int]()

    def ask() -> None:
        gate.wait(10)
        taken.append(len(Redrives(pipeline.place).ask([letter])))

    persons = [threading.Thread(target=ask) for _ in range(4)]
    for each in persons:
        each.start()
    for each in persons:
        each.join(10)
    assert sorted(taken) == [0, 0, 0, 1]
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 1]


def redrives_of(pipeline: Kept) -> list[redrives.RedrivenLetter]:
    """The open letters as they are asked for, without asking."""
    from lanemq.pipelines.operate.dead_letters import _redriven

    return [_redriven(each) for each in pipeline.letters.show(LETTER)]


def in_the_tasks(pipeline: Kept, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    pipeline.lose = crash


def behind_the_state(pipeline: Kept, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline.sink, "write", crash)


def behind_the_sink(pipeline: Kept, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transitions, "finished", crash)


def behind_the_letters(pipeline: Kept, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr("lanemq.pipelines.stages.transitions.stage.remove_old", crash)


def before_the_bodies_go(pipeline: Kept, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Redrives, "forget_bodies", crash)


@pytest.mark.parametrize(
    "where", [in_the_tasks, behind_the_state, behind_the_sink, behind_the_letters, before_the_bodies_go]
)
def test_a_crash_anywhere_neither_loses_nor_doubles_a_redriven_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Callable[..., None]
) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.letters.redrive(LETTER)

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        where(pipeline, crash, patch)
        with pytest.raises(Crash):
            pipeline.run_retry_pass()
    pipeline.lose = lambda at: None
    pipeline.restart()
    unfinished = pipeline.stage.unfinished_retry_pass()
    if unfinished is not None:
        assert pipeline.run_retry_pass(unfinished) is not None
    pipeline.run(Sent(0, 4, "a", 4))
    assert pipeline.run_retry_pass() is None
    assert pipeline.outputs("a") == [0, 2, 1, 4]
    assert pipeline.sink.rows()[-1]["seen"] == 4
    assert pipeline.letters.counts() == {"redriven": 1}


def test_a_letter_waits_behind_a_key_that_stands_still(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.restart(on_failure=Park(), step=failing_at_7)
    pipeline.run(Sent(0, 4, "a", 7), Sent(0, 5, "a", 8))
    pipeline.letters.redrive(key="a")
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [0, 2]
    (lane,) = parked(tmp_path).waiting()
    assert [(each.offset, each.late) for each in lane.messages] == [(4, False), (5, False), (1, True)]
    pipeline.restart(step=late_or_counting)
    parked(tmp_path).redrive("a")
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 7, 8, 1]
    assert pipeline.sink.rows()[-1]["seen"] == -5


def failing_at_7(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if event.value == 7:
        raise ValueError("seven")
    return late_or_counting(state, event)


def test_a_letter_that_fails_again_is_another_letter(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.restart(step=failing_late)
    pipeline.letters.redrive(LETTER)
    pipeline.run_retry_pass()
    assert pipeline.letters.counts() == {"open": 1, "redriven": 1}
    assert [each.batch for each in pipeline.letters.show(LETTER)] == [0, batch_number(0, 1)]
    pipeline.restart(step=late_or_counting)
    assert len(pipeline.letters.redrive(LETTER)) == 1
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 1]


def failing_late(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if event.late:
        raise ValueError("too late")
    return late_or_counting(state, event)


def test_a_letter_that_fails_again_follows_the_policy_of_now(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.restart(step=failing_late, on_failure=Hold(retries=1, first=0.01))
    pipeline.letters.redrive(LETTER)
    pipeline.run_retry_pass()
    pipeline.run(Sent(0, 4, "a", 4))
    assert pipeline.outputs("a") == [0, 2], "newer messages wait behind it now"
    pipeline.restart(step=late_or_counting)
    pipeline.clock.time += 10
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 1, 4]


def test_a_message_that_its_key_kept_is_not_redriven_as_a_letter(tmp_path: Path) -> None:
    """It would be applied twice: from the key, and from the letter."""
    pipeline = Kept(tmp_path, on_failure=Park())
    pipeline.run(Sent(0, 0, "a", 0), Sent(0, 1, "a", b"{"))
    assert [each.state for each in pipeline.letters.records()] == ["notice"]
    assert pipeline.letters.redrive(everything=True) == []
    with pytest.raises(UsageError, match="still waits in its key 'a'; redrive the key"):
        pipeline.letters.redrive(LETTER)
    pipeline.restart(decode=lambda body: 1 if body == b"{" else int(body))
    parked(tmp_path).redrive("a")
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [0, 1]
    with pytest.raises(UsageError, match="waits in its key"):
        pipeline.letters.redrive(LETTER)


@pytest.mark.parametrize("policy", [SKIP, DeadLetter(skip=True, hold=Hold(retries=1, first=0.001))])
def test_poison_that_was_given_up_can_be_redriven(tmp_path: Path, policy: DeadLetter) -> None:
    """With retries it is told of at first, and given up later: two letters, of which the second counts."""
    pipeline = Kept(tmp_path, on_failure=policy)
    pipeline.run(Sent(0, 0, "a", 0), Sent(0, 1, "a", b"{"))
    pipeline.clock.time += 10
    pipeline.run_retry_pass()
    pipeline.restart(decode=lambda body: 1 if body == b"{" else int(body))
    assert len(pipeline.letters.redrive(everything=True)) == 1
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [0, 1]


def test_discarded_messages_can_be_redriven_and_are_not_among_all(tmp_path: Path) -> None:
    """A person gave them up: another who wants everything back after an outage does not mean them."""
    pipeline = Kept(tmp_path, on_failure=Park())
    pipeline.run(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2), Sent(0, 2, None, FAILS))
    parked(tmp_path).discard(everything=True)
    pipeline.run_retry_pass()
    pipeline.restart(step=late_or_counting)
    assert pipeline.letters.counts() == {"discarded": 3}
    assert pipeline.letters.redrive(everything=True) == []
    assert len(pipeline.letters.redrive(key="a")) == 2
    assert len(pipeline.letters.redrive("orders/broker-a/0/2")) == 1
    pipeline.run_retry_pass()
    assert [(row["key"], row["n"]) for row in pipeline.sink.rows()] == [("a", 1), ("a", 2), (None, 1)]


@pytest.mark.parametrize("on_gap", ["report", "hold", "fail"])
def test_the_number_of_a_letter_does_not_make_it_a_repeat(tmp_path: Path, on_gap: str) -> None:
    """Its key has gone on to higher numbers, as if it had been seen."""
    pipeline = Kept(tmp_path, on_failure=SKIP, sequence="n", on_gap=on_gap)
    pipeline.run(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", {"n": 2}))
    pipeline.restart(step=late_or_counting)
    pipeline.letters.redrive(key="a")
    pipeline.run_retry_pass()
    pipeline.run(Sent(0, 2, "a", {"n": 2}), Sent(0, 3, "a", {"n": 3}))
    assert pipeline.outputs("a") == [2, 1, 3]


def test_a_letter_does_not_keep_a_key_waiting_for_a_number_that_comes(tmp_path: Path) -> None:
    pipeline = Kept(tmp_path, on_failure=SKIP, sequence="n", on_gap="hold")
    pipeline.run(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", {"n": 3}))
    pipeline.restart(step=late_or_counting)
    pipeline.letters.redrive(key="a")
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == []
    pipeline.run(Sent(0, 2, "a", {"n": 4}), Sent(0, 3, "a", {"n": 2}))
    assert pipeline.outputs("a") == [2, 3, 4, 1]


FULL_AT_2 = StateLimits(max_waiting_per_lane=2, when_lane_is_full="dead_letter")


def with_letters_of_a_full_key(folder: Path, on_gap: str) -> Kept:
    """Of four numbers the last two found no room; the key has gone on to 2."""
    pipeline = Kept(folder, sequence="n", on_gap=on_gap, limits=FULL_AT_2, on_failure=Park())
    pipeline.run(Sent(0, 0, "a", FAILS), *(Sent(0, at, "a", {"n": at + 1}) for at in (1, 2, 3)))
    pipeline.restart(step=late_or_counting)
    parked(folder).redrive("a")
    pipeline.run_retry_pass()
    assert (pipeline.outputs("a"), pipeline.letters.counts()) == ([1, 2], {"open": 2})
    return pipeline


def test_letters_of_a_full_key_have_their_turn_if_the_key_waits_for_them(tmp_path: Path) -> None:
    """Behind what waits for them they would be waited for in vain; and a lane that is full again needs them most."""
    pipeline = with_letters_of_a_full_key(tmp_path, "hold")
    pipeline.run(Sent(0, 4, "a", {"n": 5}), Sent(0, 5, "a", {"n": 6}))
    pipeline.letters.redrive(everything=True)
    pipeline.run_retry_pass()
    pipeline.run(Sent(0, 6, "a", {"n": 7}))
    assert pipeline.outputs("a") == [1, 2, 3, 4, 5, 6, 7]
    assert all(row["seen"] > 0 for row in pipeline.sink.rows()), "nothing newer was applied before them"


@pytest.mark.parametrize("on_gap", ["report", "hold", "fail"])
def test_letters_of_a_full_key_count_before_newer_ones_come(tmp_path: Path, on_gap: str) -> None:
    pipeline = with_letters_of_a_full_key(tmp_path, on_gap)
    pipeline.letters.redrive(everything=True)
    pipeline.run_retry_pass()
    counts = pipeline.run(Sent(0, 4, "a", {"n": 3}), Sent(0, 5, "a", {"n": 5}))
    assert (counts["repeats"], counts.get("gaps", 0), counts["lanes_held"]) == (1, 0, 0)
    assert pipeline.outputs("a") == [1, 2, 3, 4, 5]


def test_a_number_that_a_late_letter_brought_is_a_repeat_from_then_on(tmp_path: Path) -> None:
    pipeline = with_letters_of_a_full_key(tmp_path, "report")
    pipeline.run(Sent(0, 4, "a", {"n": 5}))
    pipeline.letters.redrive(everything=True)
    pipeline.run_retry_pass()
    assert pipeline.run(Sent(0, 5, "a", {"n": 3}))["repeats"] == 1
    assert (pipeline.outputs("a"), pipeline.letters.records()) == ([1, 2, 5, 3, 4], [])


def test_a_letter_that_told_no_number_has_its_turn_once_it_does(tmp_path: Path) -> None:
    pipeline = Kept(tmp_path, sequence="n", on_gap="hold", on_failure=SKIP)
    pipeline.run(Sent(0, 0, "a", {"n": 1}), Sent(0, 1, "a", b"{"), Sent(0, 2, "a", {"n": 3}))
    pipeline.restart(decode=lambda body: {"n": 2} if body == b"{" else {"n": int(body[6:-1])})
    pipeline.letters.redrive(LETTER)
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [1, 2, 3]


def test_a_letter_of_a_key_whose_number_was_forgotten_is_not_waited_for(tmp_path: Path) -> None:
    pipeline = Kept(
        tmp_path, sequence="n", on_gap="hold", on_failure=SKIP, limits=StateLimits(forget_numbers_after=0.001)
    )
    end = {"n": 2, "end": True}
    pipeline.run(Sent(0, 0, "a", {"n": 1}), Sent(0, 1, "a", end), Sent(0, 2, "a", {"n": 3, "fails": 9}))
    assert pipeline.run(Sent(0, 3, "b", {"n": 1}, stored=1_800_000_000_000))["forgotten_numbers"] == 1
    pipeline.restart(step=late_or_counting)
    pipeline.letters.redrive(everything=True)
    pipeline.run_retry_pass()
    pipeline.run(Sent(0, 4, "a", {"n": 1}, stored=1_800_000_000_000))
    assert pipeline.outputs("a") == [1, 3, 1], "it begins anew, as without the letter"


@pytest.mark.parametrize("options", [{}, {"state_type": dict[str, int]}, {"limits": StateLimits(expire_after=0.001)}])
def test_a_repeat_among_too_many_missed_numbers_is_redriven_only_by_its_name(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Its key does not know any more that it was applied; among all letters it would be applied twice unasked."""
    pipeline = Kept(tmp_path, sequence="n", on_gap="report", **options)
    pipeline.run(*(Sent(0, at, "a", {"n": 2 * at + 1}) for at in range(39)))
    pipeline.run(Sent(0, 39, "b", {"n": 1}, stored=1_800_000_000_000))
    pipeline.run(Sent(0, 40, "a", {"n": 5}), Sent(0, 41, "a", {"n": 76}))
    assert [each.state for each in pipeline.letters.records()] == ["doubtful", "open"]
    assert [each.offset for each in pipeline.letters.redrive(everything=True)] == [41]
    with pytest.raises(UsageError, match=r"may be a repeat .*number 5 came late or again.*, orders/broker-a/0/40"):
        pipeline.letters.redrive(key="a")
    pipeline.run_retry_pass()
    assert (pipeline.outputs("a").count(5), pipeline.outputs("a")[-1]) == (1, 76)
    assert len(pipeline.letters.redrive("orders/broker-a/0/40")) == 1


def test_a_letter_whose_turn_is_to_come_stops_nothing_either(tmp_path: Path) -> None:
    pipeline = with_letters_of_a_full_key(tmp_path, "hold")
    pipeline.restart(limits=StateLimits(max_waiting_per_lane=1))
    pipeline.run(Sent(0, 4, "a", {"n": 5}))
    pipeline.letters.redrive("orders/broker-a/0/3")
    pipeline.run_retry_pass()
    assert [each.offset for each in pipeline.letters.records()] == [2, 3]


def test_a_letter_for_a_full_key_is_a_letter_again_and_stops_nothing(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.restart(on_failure=Park(), step=failing_at_7, limits=StateLimits(max_waiting_per_lane=1))
    pipeline.run(Sent(0, 4, "a", 7))
    pipeline.letters.redrive(LETTER)
    pipeline.run_retry_pass()
    assert [each.reason for each in pipeline.letters.records()] == ["its lane is full (1 messages wait in it)"]


def test_many_letters_are_taken_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who asks nor a pass has all of them in memory."""
    monkeypatch.setattr(redrives, "LETTERS_PER_FILE", 2)
    monkeypatch.setattr("lanemq.pipelines.operate.dead_letters.LETTERS_PER_FILE", 3)
    pipeline = Kept(tmp_path, on_failure=SKIP)
    pipeline.run(*(Sent(queue, at, f"k{queue}", {"n": at, "fails": 9}) for queue in (0, 1) for at in range(5)))
    pipeline.restart(step=late_or_counting)
    assert len(pipeline.letters.redrive(everything=True)) == 10
    assert len(Redrives(pipeline.place).pending()) == 5
    pipeline.run_retry_pass()
    assert (len(Redrives(pipeline.place).pending()), pipeline.stage.due(pipeline.clock.wall())) == (1, 0)
    pipeline.run_retry_pass()
    assert pipeline.run_retry_pass() is None
    assert (pipeline.outputs("k0"), pipeline.outputs("k1")) == ([0, 1, 2, 3, 4],) * 2
    kept = b"".join(path.read_bytes() for path in (pipeline.place / "redrives" / "done").iterdir())
    assert b"fails" not in kept, "bodies go, identities stay"


@pytest.mark.parametrize("at_once", [1, 5_000])
def test_letters_come_in_the_order_of_their_offsets_whenever_they_were_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("lanemq.pipelines.operate.dead_letters.LETTERS_PER_FILE", at_once)
    limits = StateLimits(max_waiting_per_lane=1, when_lane_is_full="dead_letter")
    pipeline = Kept(tmp_path, on_failure=Park(), limits=limits)
    pipeline.run(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2))
    parked(tmp_path).discard("a")
    pipeline.run_retry_pass()
    assert [each.offset for each in pipeline.letters.records()] == [1, 0]
    pipeline.restart(step=late_or_counting)
    pipeline.letters.redrive(key="a")
    pipeline.run_retry_pass()
    assert pipeline.outputs("a") == [1, 2]


def test_letters_that_somebody_removed_are_not_passed_over(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    pipeline.letters.redrive(LETTER)
    pipeline.lose = lambda at: (_ for _ in ()).throw(Crash)
    with pytest.raises(Crash):
        pipeline.run_retry_pass()
    for path in (pipeline.place / "redrives" / "asked").iterdir():
        path.unlink()
    pipeline.lose = lambda at: None
    with pytest.raises(StateLost, match="another program removed it"):
        pipeline.run_retry_pass(1)


def test_a_letter_has_everything_of_its_message(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    (letter,) = pipeline.letters.show(LETTER)
    assert (letter.topic, letter.queue_id, letter.offset, letter.key) == ("orders", 0, 1, "a")
    assert (letter.stored, letter.message_id, letter.attempts) == (1_700_000_000_000, "id-0-1", 1)
    assert letter.reason == "ValueError: attempt 1 failed"
    with pytest.raises(UsageError, match="there is no dead letter 'x'"):
        pipeline.letters.show("x")


def test_what_cannot_be_redriven_is_told(tmp_path: Path) -> None:
    pipeline = with_a_letter(tmp_path)
    with pytest.raises(UsageError, match="give one id"):
        pipeline.letters.redrive()
    with pytest.raises(UsageError, match="there is no dead letter of key 'zzz'"):
        pipeline.letters.redrive(key="zzz")
    (pipeline.place / "stage.json").unlink()
    with pytest.raises(UsageError, match="has no step: only dead letters"):
        pipeline.letters.redrive(LETTER)
    with pytest.raises(UsageError, match="is no checkpoint"):
        dead_letters(tmp_path / "elsewhere")


def test_a_declared_sink_is_asked_if_its_letters_are_parquet_files(tmp_path: Path) -> None:
    with_a_letter(tmp_path)

    def declared(sink: Any) -> Pipeline:
        source = Topic("127.0.0.1:1", "orders")
        return Pipeline("orders", source, Project(["key"]), ParquetSink("out"), tmp_path, dead_letters=sink)

    (tmp_path / "dead_letters").rename(tmp_path / "moved")
    assert len(dead_letters(declared(ParquetSink(tmp_path / "moved"))).records()) == 1
    with pytest.raises(UsageError, match=r"declares for them \(DeltaSink\): query that"):
        dead_letters(declared(DeltaSink(tmp_path / "delta")))
    with pytest.raises(UsageError, match="give the file that declares it"):
        dead_letters(tmp_path)
