"""Dead letters that are given to the step again: late, and once through crashes."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions.dead_letter_fixture import DeadLetterPipeline
from tests.pipelines.stages.transitions.pipeline_fixture import Crash, Sent

from lanemq.clock import wall_time
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
from lanemq.pipelines.batches import batch_number
from lanemq.pipelines.stages.transitions.operator_requests import RedrivenDeadLetter, Redrives
from lanemq.pipelines.stages.transitions.stage import Transitions

FAILS = {"n": 1, "fails": 99}
SKIP = DeadLetter(skip=True)
LETTER = "orders/broker-a/0/1"


def with_a_dead_letter(folder: Path, **options: Any) -> DeadLetterPipeline:
    """A pipeline whose key `a` has a dead letter, its second message. The step no longer fails."""
    pipeline = DeadLetterPipeline(folder, **{"on_failure": SKIP} | options)
    pipeline.process(Sent(0, 0, "a", 0), Sent(0, 1, "a", FAILS), Sent(0, 2, "a", 2), Sent(0, 3, "b", 3))
    pipeline.restart(step=late_or_counting)
    return pipeline


def late_or_counting(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    """The step of the fixture, corrected: it never fails. A negative count marks a late event."""
    state = {"seen": 0} if state is None else state
    state["seen"] += 1
    value = event.value if isinstance(event.value, dict) else {"n": event.value}
    return state, [{"key": event.key, "n": value["n"], "seen": -state["seen"] if event.late else state["seen"]}]


def test_a_redriven_dead_letter_comes_after_everything_of_its_key_and_is_marked_late(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.process(Sent(0, 4, "a", 4))
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) is None
    (asked,) = pipeline.dead_letters.redrive(LETTER)
    assert (asked.key, asked.value) == ("a", None)
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) == 0
    counts = pipeline.process_retry_pass()
    assert counts is not None
    assert (counts["redriven_dead_letters"], counts["applied"]) == (1, 1)
    pipeline.process(Sent(0, 5, "a", 5))
    assert [(row["n"], row["seen"]) for row in pipeline.sink.rows() if row["key"] == "a"] == [
        (0, 1), (2, 2), (4, 3), (1, -4), (5, 5),
    ]  # fmt: skip
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) is None


def test_a_dead_letter_is_redriven_once_however_often_it_is_requested(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.dead_letters.redrive(LETTER)
    with pytest.raises(UsageError, match="redriven already, or will be"):
        pipeline.dead_letters.redrive(LETTER)
    assert pipeline.dead_letters.redrive(everything=True) == []
    pipeline.process_retry_pass()
    with pytest.raises(UsageError, match="redriven already"):
        pipeline.dead_letters.redrive(key="a")
    assert pipeline.process_retry_pass() is None
    assert pipeline.outputs("a") == [0, 2, 1]
    assert pipeline.dead_letters.records() == []
    assert [each.state for each in pipeline.dead_letters.records(redriven=True)] == ["redriven"]
    assert pipeline.dead_letters.counts() == {"redriven": 1}


def test_of_simultaneous_requests_one_is_taken(tmp_path: Path) -> None:
    """All have seen the dead letter as open before the first request is written."""
    pipeline = with_a_dead_letter(tmp_path)
    (letter,) = redrives_of(pipeline)
    gate, taken = threading.Barrier(4), list[int]()

    def ask() -> None:
        gate.wait(10)
        taken.append(len(Redrives(pipeline.folder).ask([letter])))

    operators = [threading.Thread(target=ask) for _ in range(4)]
    for each in operators:
        each.start()
    for each in operators:
        each.join(10)
    assert sorted(taken) == [0, 0, 0, 1]
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 1]


def redrives_of(pipeline: DeadLetterPipeline) -> list[RedrivenDeadLetter]:
    """The open dead letters as `redrive` would request them."""
    from lanemq.pipelines.operate.dead_letters import _redriven

    return [_redriven(each) for each in pipeline.dead_letters.show(LETTER)]


def in_the_tasks(pipeline: DeadLetterPipeline, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    pipeline.lose = crash


def after_the_state(pipeline: DeadLetterPipeline, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline.sink, "write", crash)


def after_the_sink(pipeline: DeadLetterPipeline, crash: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transitions, "finished", crash)


def after_the_request_is_done(
    pipeline: DeadLetterPipeline, crash: Callable[..., Any], patch: pytest.MonkeyPatch
) -> None:
    patch.setattr("lanemq.pipelines.stages.transitions.stage.remove_tree", crash)


@pytest.mark.parametrize("where", [in_the_tasks, after_the_state, after_the_sink, after_the_request_is_done])
def test_a_crash_neither_loses_nor_repeats_a_redriven_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Callable[..., None]
) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.dead_letters.redrive(LETTER)

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        where(pipeline, crash, patch)
        with pytest.raises(Crash):
            pipeline.process_retry_pass()
    pipeline.lose = lambda at: None
    pipeline.restart()
    pipeline.passes += 1
    while pipeline.process_retry_pass() is not None:
        pass
    pipeline.process(Sent(0, 4, "a", 4))
    assert pipeline.process_retry_pass() is None
    assert pipeline.outputs("a") == [0, 2, 1, 4]
    assert pipeline.sink.rows()[-1]["seen"] == 4
    assert pipeline.dead_letters.counts() == {"redriven": 1}


def test_a_redriven_dead_letter_waits_behind_a_held_key(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.restart(on_failure=Park(), step=failing_at_7)
    pipeline.process(Sent(0, 4, "a", 7), Sent(0, 5, "a", 8))
    pipeline.dead_letters.redrive(key="a")
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0, 2]
    (lane,) = parked(tmp_path).waiting()
    assert [(each.offset, each.late) for each in lane.messages] == [(4, False), (5, False), (1, True)]
    pipeline.restart(step=late_or_counting)
    parked(tmp_path).redrive("a")
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 7, 8, 1]
    assert pipeline.sink.rows()[-1]["seen"] == -5


def failing_at_7(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if event.value == 7:
        raise ValueError("seven")
    return late_or_counting(state, event)


def test_a_redriven_message_that_fails_again_is_another_dead_letter(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.restart(step=failing_late)
    pipeline.dead_letters.redrive(LETTER)
    pipeline.process_retry_pass()
    assert pipeline.dead_letters.counts() == {"open": 1, "redriven": 1}
    assert [each.batch for each in pipeline.dead_letters.show(LETTER)] == [0, batch_number(0, 1)]
    pipeline.restart(step=late_or_counting)
    assert len(pipeline.dead_letters.redrive(LETTER)) == 1
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 1]


def failing_late(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if event.late:
        raise ValueError("too late")
    return late_or_counting(state, event)


def test_a_redriven_message_that_fails_again_follows_the_current_policy(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.restart(step=failing_late, on_failure=Hold(retries=1, first=0.01))
    pipeline.dead_letters.redrive(LETTER)
    pipeline.process_retry_pass()
    pipeline.process(Sent(0, 4, "a", 4))
    assert pipeline.outputs("a") == [0, 2], "newer messages wait behind it now"
    pipeline.restart(step=late_or_counting)
    pipeline.clock.time += 10
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0, 2, 1, 4]


def test_a_message_that_waits_in_its_lane_is_not_redriven_as_a_dead_letter(tmp_path: Path) -> None:
    """It would be applied twice: from the lane, and as a dead letter."""
    pipeline = DeadLetterPipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", 0), Sent(0, 1, "a", b"{"))
    assert [each.state for each in pipeline.dead_letters.records()] == ["notice"]
    assert pipeline.dead_letters.redrive(everything=True) == []
    with pytest.raises(UsageError, match="still waits in its key 'a'; redrive the key"):
        pipeline.dead_letters.redrive(LETTER)
    pipeline.restart(decode=lambda body: 1 if body == b"{" else int(body))
    parked(tmp_path).redrive("a")
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0, 1]
    with pytest.raises(UsageError, match="does not wait in its key 'a' any more"):
        pipeline.dead_letters.redrive(LETTER)


@pytest.mark.parametrize("policy", [Park(), Hold(retries=1, first=0.01)])
def test_an_undecodable_message_has_one_notice_however_often_its_key_is_redriven(tmp_path: Path, policy: Any) -> None:
    pipeline = DeadLetterPipeline(tmp_path, on_failure=policy)
    pipeline.process(Sent(0, 0, "a", b"{"), Sent(0, 1, "a", b"["))
    for _ in range(3):
        parked(tmp_path).redrive("a")
        pipeline.process_retry_pass()
        pipeline.restart()
    assert [row["queue_offset"] for row in pipeline.sink.dead_rows()] == [0]
    pipeline.restart(decode=lambda body: 1 if body == b"{" else int(body))
    parked(tmp_path).redrive("a")
    pipeline.process_retry_pass()
    assert [row["queue_offset"] for row in pipeline.sink.dead_rows()] == [0, 1], "the next one fails for the first time"


def test_a_notice_is_settled_when_its_message_does_not_wait_any_more(tmp_path: Path) -> None:
    pipeline = DeadLetterPipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", b"{"), Sent(0, 1, "b", b"{"), Sent(0, 2, "a", 2))
    letters = pipeline.dead_letters
    assert (letters.counts(), letters.settled()) == ({"notice": 2}, 0)
    parked(tmp_path).discard("a", first_only=True)
    pipeline.process_retry_pass()
    assert (letters.counts(), letters.settled()) == ({"discarded": 1, "notice": 1, "settled": 1}, 1)
    assert [(each.key, each.state) for each in letters.records()] == [("b", "notice"), ("a", "discarded")]
    assert [each.state for each in letters.show("orders/broker-a/0/0")] == ["settled", "discarded"]


@pytest.mark.parametrize("policy", [SKIP, DeadLetter(skip=True, hold=Hold(retries=1, first=0.001))])
def test_skipped_poison_can_be_redriven(tmp_path: Path, policy: DeadLetter) -> None:
    """With retries it is reported first and skipped later: two dead letters, of which the second counts."""
    pipeline = DeadLetterPipeline(tmp_path, on_failure=policy)
    pipeline.process(Sent(0, 0, "a", 0), Sent(0, 1, "a", b"{"))
    pipeline.clock.time += 10
    pipeline.process_retry_pass()
    pipeline.restart(decode=lambda body: 1 if body == b"{" else int(body))
    assert len(pipeline.dead_letters.redrive(everything=True)) == 1
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0, 1]


def test_discarded_messages_are_redriven_by_name_but_not_with_everything(tmp_path: Path) -> None:
    """An operator gave them up; one who redrives everything after an outage does not mean them."""
    pipeline = DeadLetterPipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2), Sent(0, 2, "b", FAILS))
    parked(tmp_path).discard(everything=True)
    pipeline.process_retry_pass()
    pipeline.restart(step=late_or_counting)
    assert pipeline.dead_letters.counts() == {"discarded": 3}
    assert pipeline.dead_letters.redrive(everything=True) == []
    assert len(pipeline.dead_letters.redrive(key="a")) == 2
    assert len(pipeline.dead_letters.redrive("orders/broker-a/0/2")) == 1
    pipeline.process_retry_pass()
    assert [(row["key"], row["n"]) for row in pipeline.sink.rows()] == [("a", 1), ("a", 2), ("b", 1)]


def test_a_redriven_message_without_a_key_is_a_dead_letter_again(tmp_path: Path) -> None:
    pipeline = DeadLetterPipeline(tmp_path)
    pipeline.process(Sent(0, 0, None, 1))
    assert len(pipeline.dead_letters.redrive(everything=True)) == 1
    pipeline.process_retry_pass()
    assert not pipeline.sink.rows()
    assert [row["reason"][:13] for row in pipeline.sink.dead_rows()] == ["it has no key"] * 2


@pytest.mark.parametrize("on_gap", ["report", "hold", "fail"])
def test_a_redriven_dead_letter_is_not_dropped_as_a_repeat(tmp_path: Path, on_gap: str) -> None:
    """Its key has reached higher numbers."""
    pipeline = DeadLetterPipeline(tmp_path, on_failure=SKIP, sequence="n", on_gap=on_gap)
    pipeline.process(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", {"n": 2}))
    pipeline.restart(step=late_or_counting)
    pipeline.dead_letters.redrive(key="a")
    pipeline.process_retry_pass()
    pipeline.process(Sent(0, 2, "a", {"n": 2}), Sent(0, 3, "a", {"n": 3}))
    assert pipeline.outputs("a") == [2, 1, 3]


def test_a_redriven_dead_letter_does_not_delay_a_number_that_comes(tmp_path: Path) -> None:
    pipeline = DeadLetterPipeline(tmp_path, on_failure=SKIP, sequence="n", on_gap="hold")
    pipeline.process(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", {"n": 3}))
    pipeline.restart(step=late_or_counting)
    pipeline.dead_letters.redrive(key="a")
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == []
    pipeline.process(Sent(0, 2, "a", {"n": 4}), Sent(0, 3, "a", {"n": 2}))
    assert pipeline.outputs("a") == [2, 3, 4, 1]


FULL_AT_2 = StateLimits(max_waiting_per_lane=2, when_lane_is_full="dead_letter")


def with_dead_letters_of_a_full_lane(folder: Path, on_gap: str) -> DeadLetterPipeline:
    """Of four numbers the last two became dead letters because the lane was full; the key has reached 2."""
    pipeline = DeadLetterPipeline(folder, sequence="n", on_gap=on_gap, limits=FULL_AT_2, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", FAILS), *(Sent(0, at, "a", {"n": at + 1}) for at in (1, 2, 3)))
    pipeline.restart(step=late_or_counting)
    parked(folder).redrive("a")
    pipeline.process_retry_pass()
    assert (pipeline.outputs("a"), pipeline.dead_letters.counts()) == ([1, 2], {"open": 2})
    return pipeline


def test_dead_letters_of_a_full_lane_are_applied_in_order_if_the_lane_waits_for_them(tmp_path: Path) -> None:
    """The lane waits for their numbers, so they must not queue behind what waits, even if the lane is full again."""
    pipeline = with_dead_letters_of_a_full_lane(tmp_path, "hold")
    pipeline.process(Sent(0, 4, "a", {"n": 5}), Sent(0, 5, "a", {"n": 6}))
    pipeline.dead_letters.redrive(everything=True)
    pipeline.process_retry_pass()
    pipeline.process(Sent(0, 6, "a", {"n": 7}))
    assert pipeline.outputs("a") == [1, 2, 3, 4, 5, 6, 7]
    assert all(row["seen"] > 0 for row in pipeline.sink.rows()), "nothing newer was applied before them"


@pytest.mark.parametrize("on_gap", ["report", "hold", "fail"])
def test_redriven_dead_letters_of_a_full_lane_count_before_newer_numbers(tmp_path: Path, on_gap: str) -> None:
    pipeline = with_dead_letters_of_a_full_lane(tmp_path, on_gap)
    pipeline.dead_letters.redrive(everything=True)
    pipeline.process_retry_pass()
    counts = pipeline.process(Sent(0, 4, "a", {"n": 3}), Sent(0, 5, "a", {"n": 5}))
    assert (counts["repeats"], counts.get("gaps", 0), counts["lanes_held"]) == (1, 0, 0)
    assert pipeline.outputs("a") == [1, 2, 3, 4, 5]


def test_the_number_of_an_applied_dead_letter_is_a_repeat_afterwards(tmp_path: Path) -> None:
    pipeline = with_dead_letters_of_a_full_lane(tmp_path, "report")
    pipeline.process(Sent(0, 4, "a", {"n": 5}))
    pipeline.dead_letters.redrive(everything=True)
    pipeline.process_retry_pass()
    assert pipeline.process(Sent(0, 5, "a", {"n": 3}))["repeats"] == 1
    assert (pipeline.outputs("a"), pipeline.dead_letters.records()) == ([1, 2, 5, 3, 4], [])


def test_a_dead_letter_whose_number_was_unknown_is_applied_in_order_once_it_is_known(tmp_path: Path) -> None:
    pipeline = DeadLetterPipeline(tmp_path, sequence="n", on_gap="hold", on_failure=SKIP)
    pipeline.process(Sent(0, 0, "a", {"n": 1}), Sent(0, 1, "a", b"{"), Sent(0, 2, "a", {"n": 3}))
    pipeline.restart(decode=lambda body: {"n": 2} if body == b"{" else {"n": int(body[6:-1])})
    pipeline.dead_letters.redrive(LETTER)
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [1, 2, 3]


def test_a_key_whose_number_was_forgotten_does_not_wait_for_a_dead_letter(tmp_path: Path) -> None:
    pipeline = DeadLetterPipeline(
        tmp_path, sequence="n", on_gap="hold", on_failure=SKIP, limits=StateLimits(forget_numbers_after=0.001)
    )
    end = {"n": 2, "end": True}
    pipeline.process(Sent(0, 0, "a", {"n": 1}), Sent(0, 1, "a", end), Sent(0, 2, "a", {"n": 3, "fails": 9}))
    assert pipeline.process(Sent(0, 3, "b", {"n": 1}, stored=1_800_000_000_000))["forgotten_numbers"] == 1
    pipeline.restart(step=late_or_counting)
    pipeline.dead_letters.redrive(everything=True)
    pipeline.process_retry_pass()
    pipeline.process(Sent(0, 4, "a", {"n": 1}, stored=1_800_000_000_000))
    assert pipeline.outputs("a") == [1, 3, 1], "it begins again, as without the dead letter"


@pytest.mark.parametrize("options", [{}, {"state_type": dict[str, int]}, {"limits": StateLimits(expire_after=0.001)}])
def test_a_doubtful_repeat_is_redriven_only_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    """Its key no longer knows whether it was applied; redriving everything could apply it twice."""
    pipeline = DeadLetterPipeline(tmp_path, sequence="n", on_gap="report", **options)
    pipeline.process(*(Sent(0, at, "a", {"n": 2 * at + 1}) for at in range(39)))
    pipeline.process(Sent(0, 39, "b", {"n": 1}, stored=1_800_000_000_000))
    pipeline.process(Sent(0, 40, "a", {"n": 5}), Sent(0, 41, "a", {"n": 76}))
    assert [each.state for each in pipeline.dead_letters.records()] == ["doubtful", "open"]
    assert [each.offset for each in pipeline.dead_letters.redrive(everything=True)] == [41]
    with pytest.raises(UsageError, match=r"may be a repeat .*number 5 came late or again.*, orders/broker-a/0/40"):
        pipeline.dead_letters.redrive(key="a")
    pipeline.process_retry_pass()
    assert (pipeline.outputs("a").count(5), pipeline.outputs("a")[-1]) == (1, 76)
    assert len(pipeline.dead_letters.redrive("orders/broker-a/0/40")) == 1


def test_a_redriven_number_for_a_full_lane_does_not_fail_the_batch(tmp_path: Path) -> None:
    pipeline = with_dead_letters_of_a_full_lane(tmp_path, "hold")
    pipeline.restart(limits=StateLimits(max_waiting_per_lane=1))
    pipeline.process(Sent(0, 4, "a", {"n": 5}))
    pipeline.dead_letters.redrive("orders/broker-a/0/3")
    pipeline.process_retry_pass()
    assert [each.offset for each in pipeline.dead_letters.records()] == [2, 3]


def test_a_redriven_message_for_a_full_lane_is_a_dead_letter_again(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.restart(on_failure=Park(), step=failing_at_7, limits=StateLimits(max_waiting_per_lane=1))
    pipeline.process(Sent(0, 4, "a", 7))
    pipeline.dead_letters.redrive(LETTER)
    pipeline.process_retry_pass()
    assert [each.reason for each in pipeline.dead_letters.records()] == ["its lane is full (1 messages wait in it)"]


def test_many_dead_letters_are_redriven_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the request nor a retry pass has all of them in memory."""
    monkeypatch.setattr("lanemq.pipelines.stages.transitions.operator_requests.DEAD_LETTERS_PER_FILE", 2)
    monkeypatch.setattr("lanemq.pipelines.operate.dead_letters.DEAD_LETTERS_PER_FILE", 3)
    pipeline = DeadLetterPipeline(tmp_path, on_failure=SKIP)
    pipeline.process(*(Sent(queue, at, f"k{queue}", {"n": at, "fails": 9}) for queue in (0, 1) for at in range(5)))
    pipeline.restart(step=late_or_counting)
    assert len(pipeline.dead_letters.redrive(everything=True)) == 10
    assert len(Redrives(pipeline.folder).pending()) == 5
    pipeline.process_retry_pass()
    assert (len(Redrives(pipeline.folder).pending()), pipeline.stage.due(wall_time(pipeline.clock.wall()))) == (1, 0)
    pipeline.process_retry_pass()
    assert pipeline.process_retry_pass() is None
    assert (pipeline.outputs("k0"), pipeline.outputs("k1")) == ([0, 1, 2, 3, 4],) * 2
    kept = b"".join(path.read_bytes() for path in (pipeline.folder / "redrives" / "done").iterdir())
    assert b"fails" not in kept, "bodies go, identities stay"


@pytest.mark.parametrize("at_once", [1, 5_000])
def test_dead_letters_are_redriven_in_the_order_of_their_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("lanemq.pipelines.operate.dead_letters.DEAD_LETTERS_PER_FILE", at_once)
    limits = StateLimits(max_waiting_per_lane=1, when_lane_is_full="dead_letter")
    pipeline = DeadLetterPipeline(tmp_path, on_failure=Park(), limits=limits)
    pipeline.process(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2))
    parked(tmp_path).discard("a")
    pipeline.process_retry_pass()
    assert [each.offset for each in pipeline.dead_letters.records()] == [1, 0]
    pipeline.restart(step=late_or_counting)
    pipeline.dead_letters.redrive(key="a")
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [1, 2]


def test_a_request_file_that_is_removed_during_its_pass_is_an_error(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    pipeline.dead_letters.redrive(LETTER)

    def remove(_: object) -> None:
        for path in (pipeline.folder / "redrives" / "asked").iterdir():
            path.unlink()

    pipeline.lose = remove
    with pytest.raises(StateLost, match="another program removed it"):
        pipeline.process_retry_pass()


def test_a_dead_letter_has_everything_of_its_message(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    (letter,) = pipeline.dead_letters.show(LETTER)
    assert (letter.topic, letter.queue_id, letter.offset, letter.key) == ("orders", 0, 1, "a")
    assert (letter.stored_at, letter.message_id, letter.attempts) == (wall_time(1_700_000_000_000), "id-0-1", 1)
    assert letter.reason.startswith("ValueError: attempt 1 failed at transitions/")
    with pytest.raises(UsageError, match="there is no dead letter 'x'"):
        pipeline.dead_letters.show("x")


def test_what_cannot_be_redriven_is_refused_with_a_reason(tmp_path: Path) -> None:
    pipeline = with_a_dead_letter(tmp_path)
    with pytest.raises(UsageError, match="give one id"):
        pipeline.dead_letters.redrive()
    with pytest.raises(UsageError, match="there is no dead letter of key 'zzz'"):
        pipeline.dead_letters.redrive(key="zzz")
    (pipeline.folder / "stage.json").unlink()
    with pytest.raises(UsageError, match="has no step: only dead letters"):
        pipeline.dead_letters.redrive(LETTER)
    with pytest.raises(UsageError, match="is not a checkpoint"):
        dead_letters(tmp_path / "elsewhere")


def test_dead_letters_of_a_declared_delta_table_are_read(tmp_path: Path) -> None:
    with_a_dead_letter(tmp_path)

    def declared(sink: Any) -> Pipeline:
        source = Topic("127.0.0.1:1", "orders")
        return Pipeline("orders", source, Project(["key"]), ParquetSink("out"), tmp_path, dead_letters=sink)

    (tmp_path / "dead_letters").rename(tmp_path / "moved")
    assert len(dead_letters(declared(DeltaSink(tmp_path / "moved"))).records()) == 1
    with pytest.raises(UsageError, match=r"declares for them \(ParquetSink\): query that"):
        dead_letters(declared(ParquetSink(tmp_path / "files")))
    with pytest.raises(UsageError, match="give the file that declares it"):
        dead_letters(tmp_path)
