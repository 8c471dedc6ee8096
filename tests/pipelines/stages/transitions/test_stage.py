"""The stage with its files and its tasks, without a JVM."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import (
    OUTPUTS,
    QUERY,
    Crash,
    Pipeline,
    Sent,
    arrow,
    counting,
    messages,
)

from lanemq.model.errors import InvalidOption, LaneError, OrderError
from lanemq.pipelines import Event, Hold, Park, StateLimits, Transitions
from lanemq.pipelines.batches import NUMBERS_PER_BATCH, Batch, batch_number
from lanemq.pipelines.operate.parked import show
from lanemq.pipelines.stages.transitions import worker
from lanemq.pipelines.stages.transitions.machine import ShardMachine
from lanemq.pipelines.stages.transitions.messages import SHARD, queue_slices
from lanemq.pipelines.stages.transitions.rules import UnfitState
from lanemq.pipelines.stages.transitions.shard import CACHE, Shard, WaitReason

HOLD = Hold(retries=2, first=0.1, max=1.0)


def test_every_event_of_a_key_is_applied_in_order(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    counts = pipeline.process(*messages(9), *messages(9, queue=1))
    pipeline.process(*messages(9, first=9))
    assert counts["events"] == counts["applied"] == 18
    assert pipeline.outputs("key-0-1") == [1, 4, 7, 10, 13, 16]
    assert [row["seen"] for row in pipeline.sink.rows() if row["key"] == "key-0-1"] == [1, 2, 3, 4, 5, 6]


def test_a_repeated_batch_gives_the_same_rows_and_leaves_the_same_state(tmp_path: Path) -> None:
    """The worker has the shard as the first attempt left it, and must not start from that."""
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(6))
    first = pipeline.stage.process(pipeline.frame([[arrow(messages(6, first=6))]]), Batch(QUERY, NUMBERS_PER_BATCH, 1))
    again = pipeline.stage.process(pipeline.frame([[arrow(messages(6, first=6))]]), Batch(QUERY, NUMBERS_PER_BATCH, 1))
    assert first.outputs.table().to_pylist() == again.outputs.table().to_pylist()
    pipeline.units.record(Batch(QUERY, NUMBERS_PER_BATCH, 1), again, {}, decide=False, whole=False)
    assert show(tmp_path, "key-0-0")[0].state == {"seen": 4}


def test_a_batch_that_failed_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(6), *messages(6, queue=1))

    def second_task(at: int | None) -> None:
        if at == 1:
            raise Crash

    pipeline.lose = second_task
    with pytest.raises(Crash):
        pipeline.process(*messages(6, first=6), *messages(6, first=6, queue=1))
    pipeline.lose = lambda at: None
    pipeline.process(*messages(6, first=6), *messages(6, first=6, queue=1), again=True)
    for queue in (0, 1):
        seen = [row["seen"] for row in pipeline.sink.rows() if row["key"] == f"key-{queue}-0"]
        assert seen == [1, 2, 3, 4]


def test_an_attempt_with_a_corrected_step_does_not_use_state_of_the_attempt_before(tmp_path: Path) -> None:
    """Attempts of one batch differ if the code was changed; the state must be that of the attempt that counted."""
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(3))

    def wrong(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return {"seen": 1_000}, []

    pipeline.restart(step=wrong)
    pipeline.process(*messages(3, first=3), settle=False)
    wrong_shards = dict(CACHE._shards)
    pipeline.restart(step=counting)
    CACHE._shards.clear()
    pipeline.process(*messages(3, first=3), again=True)
    CACHE._shards.update(wrong_shards)  # as if the worker of the first attempt got the next task
    pipeline.process(*messages(3, first=6))
    assert show(tmp_path, "key-0-0")[0].state == {"seen": 3}


class Recorded(worker.ShardUpdate):
    """Records in which order a task works on its shards."""

    calls: ClassVar[list[str]] = []

    def take(self, messages: Any) -> None:
        self.calls.append(f"take {messages.queue_id}")
        super().take(messages)

    def finish(self) -> Any:
        self.calls.append(f"finish {self._name[-1]}")
        return super().finish()


@pytest.mark.parametrize("most", [100, 1])
def test_a_task_that_may_not_keep_the_states_of_all_its_queues_finishes_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(worker, "ShardUpdate", Recorded)
    monkeypatch.setattr(Recorded, "calls", [])
    pipeline = Pipeline(tmp_path, limits=StateLimits(max_cache_keys_per_worker=most))
    both = pipeline.frame([[arrow([*messages(6), *messages(6, queue=1)])]])
    results = pipeline.stage.process(both, Batch(QUERY, 0, 1))
    assert sorted(row["n"] for row in results.outputs.table().to_pylist()) == sorted([*range(6)] * 2)
    at_once, in_turn = ["take 0", "take 1", "finish 0", "finish 1"], ["take 0", "finish 0", "take 1", "finish 1"]
    assert Recorded.calls == (in_turn if most == 1 else at_once)


def test_rows_of_a_queue_that_come_again_after_its_state_was_put_away_are_refused(tmp_path: Path) -> None:
    """Applying them would start from the state before the batch."""
    mixed = arrow([*messages(2), *messages(2, queue=1), *messages(2, first=2)])
    pipeline = Pipeline(tmp_path, limits=StateLimits(max_cache_keys_per_worker=1))
    with pytest.raises(LaneError, match=r"rows of orders/broker-a/0 come again .* let prepare keep"):
        pipeline.stage.process(pipeline.frame([[mixed]]), Batch(QUERY, 0, 1))
    roomy = Pipeline(tmp_path / "roomy")
    assert roomy.stage.process(roomy.frame([[mixed]]), Batch(QUERY, 0, 1)).counts["applied"] == 6


def test_offsets_that_were_seen_are_repeats(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(6))
    counts = pipeline.process(*messages(8, first=3))
    assert (counts["repeats"], counts["applied"]) == (3, 5)
    assert sorted(row["n"] for row in pipeline.sink.rows()) == list(range(11))


def test_missing_offsets_are_counted(tmp_path: Path) -> None:
    """Within a batch, between batches, and after repeats; a queue may begin at any offset."""
    pipeline = Pipeline(tmp_path)
    assert pipeline.process(*messages(3, first=7), *messages(2, first=20))["missing"] == 10
    assert pipeline.process(*messages(4, first=22))["missing"] == 0
    assert pipeline.process(*messages(2, first=30))["missing"] == 4
    assert pipeline.process(*messages(4, first=30), *messages(1, first=35))["missing"] == 1


def test_missing_offsets_are_not_counted_if_shards_are_not_queues(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    machine = ShardMachine(Shard(), replace(pipeline.stage._options, by_queue=False).rules(), 0)
    ((_, run),) = queue_slices(arrow([*messages(2), *messages(2, first=9)]))
    machine.take(run)
    assert machine.counts["missing"] == 0


def test_old_messages_that_come_again_do_not_move_a_queue_back(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(6))
    pipeline.process(*messages(3))
    pipeline.process(*messages(3, first=3))
    assert sorted(row["n"] for row in pipeline.sink.rows()) == list(range(6))


def test_messages_of_a_recreated_topic_are_not_repeats(tmp_path: Path) -> None:
    """Their offsets were seen, their store times were not."""
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(6))
    recreated = [each._replace(value=100 + each.offset, stored=each.stored + 1 + each.offset) for each in messages(4)]
    counts = pipeline.process(*recreated)
    assert (counts["applied"], counts["recreated_queues"]) == (4, 1)
    assert pipeline.process(*recreated[1:])["repeats"] == 3


def test_a_stamped_message_that_the_broker_stored_twice_is_applied_once(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    stamped = [Sent(0, at, "k", sequence, ("p", 1, sequence)) for at, sequence in enumerate([0, 1, 0, 1, 2, 5])]
    counts = pipeline.process(*stamped)
    assert (counts["repeats"], counts["gaps"]) == (2, 2)
    counts = pipeline.process(
        Sent(0, 6, "k", 5, ("p", 1, 5)), Sent(0, 7, "k", 6, ("p", 2, 0)), Sent(0, 8, "k", 2, ("p", 1, 2))
    )
    assert counts["repeats"] == 2
    assert pipeline.outputs("k") == [0, 1, 2, 5, 6]


def test_a_batch_may_have_one_row_or_none(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    assert pipeline.process()["keys"] == 0
    assert pipeline.process(Sent(0, 0, "k", 1))["applied"] == 1
    assert pipeline.process()["keys"] == 1
    assert pipeline.outputs("k") == [1]


def test_queues_in_one_partition_are_separate_shards(tmp_path: Path) -> None:
    """As in a coalesced frame."""
    pipeline = Pipeline(tmp_path)
    both = [arrow([*messages(4), *messages(4, queue=1)]), arrow(messages(4, first=4, queue=1))]
    results = pipeline.stage.process(pipeline.frame([both]), Batch(QUERY, 0, 1))
    assert results.counts["applied"] == 12
    assert sorted(file.shard for file in results.outputs.files) == ["orders/broker-a/0", "orders/broker-a/1"]  # type: ignore[attr-defined]


def test_a_queue_in_two_tasks_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    split = [[arrow(messages(4))], [arrow(messages(4, first=4))]]
    with pytest.raises(OrderError, match="in two tasks at once"):
        pipeline.stage.process(pipeline.frame(split), Batch(QUERY, 0, 1))
    assert pipeline.process(*messages(8))["applied"] == 8


def test_rows_out_of_order_are_refused_and_not_taken_for_repeats(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    shuffled = [[arrow(messages(4, first=4)), arrow(messages(4))]]
    with pytest.raises(OrderError, match="offset 0 after 7"):
        pipeline.stage.process(pipeline.frame(shuffled), Batch(QUERY, 0, 1))
    with pytest.raises(OrderError, match="out of order"):
        pipeline.stage.process(pipeline.frame([[arrow(messages(4)[::-1])]]), Batch(QUERY, 0, 1))


def test_a_task_that_fails_leaves_no_rows_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_ROWS_AT_ONCE", 1)
    pipeline = Pipeline(tmp_path)
    with pytest.raises(OrderError):
        pipeline.stage.process(pipeline.frame([[arrow(messages(4, first=4)), arrow(messages(4))]]), Batch(QUERY, 0, 1))
    assert not list((tmp_path / "work").rglob("*.parquet"))


def test_rows_that_do_not_fit_the_outputs_fail_their_event_only(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Park())
    values: list[object] = ["text", 2**70, {"n": 3.5}, 4]
    counts = pipeline.process(*(Sent(0, at, f"key-{at}", value) for at, value in enumerate(values)))
    assert (counts["applied"], counts["parked"]) == (1, 3)


def test_a_key_that_ended_is_forgotten(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(Sent(0, 0, "a", 0), Sent(0, 1, "b", 1))
    counts = pipeline.process(Sent(0, 2, "a", {"end": True}))
    assert counts["keys"] == 1
    assert show(tmp_path, "a") == []


def test_silent_keys_expire_by_store_time_but_held_ones_do_not(tmp_path: Path) -> None:
    limits = StateLimits(expire_after=1.0)
    pipeline = Pipeline(tmp_path, limits=limits, on_failure=Park())
    pipeline.process(
        Sent(0, 0, "old", 0, stored=10_000),
        Sent(0, 1, "parked", {"n": 1, "fails": 1}, stored=10_000),
        Sent(0, 2, "young", 2, stored=10_500),
    )
    counts = pipeline.process(Sent(0, 3, "new", 3, stored=11_200))
    assert (counts["expired"], counts["keys"]) == (1, 3)
    assert show(tmp_path, "old") == []


def test_too_many_keys_are_an_error_that_names_the_option(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, limits=StateLimits(max_keys_per_shard=2))
    with pytest.raises(InvalidOption, match="max_keys_per_shard=2"):
        pipeline.process(*messages(3))


def test_too_many_bytes_are_an_error_that_names_the_option(tmp_path: Path) -> None:
    """A few keys with growing states fill a worker as many keys do."""

    def growing(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return (state or "") + "x" * 100, []

    pipeline = Pipeline(tmp_path, step=growing, limits=StateLimits(max_bytes_per_shard=1_000))
    pipeline.process(*messages(6, keys=2))
    with pytest.raises(InvalidOption, match=r"has 1\d\d\d bytes, more than StateLimits\(max_bytes_per_shard=1000\)"):
        pipeline.process(*messages(6, keys=2, first=6))


def test_the_counted_bytes_of_a_shard_are_those_of_its_lanes(tmp_path: Path) -> None:
    """The count is carried from unit to unit, through keys that grow, end, expire and are parked."""

    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        if event.value % 11 == 10:
            raise ValueError("not this one")
        return (None if event.value % 7 == 6 else (state or "") + "x" * event.value), []

    limits = StateLimits(expire_after=0.02)
    rules = Transitions(step=step, outputs=OUTPUTS, on_failure=Park(), limits=limits)._options.rules()
    shard, expired = Shard(), 0
    for first in range(0, 200, 20):
        machine = ShardMachine(shard, rules, 0)
        ((_, run),) = queue_slices(
            arrow([Sent(0, at, f"key-{at // 9 % 5}", at, stored=at) for at in range(first, first + 20)])
        )
        machine.take(run)
        machine.finish()
        expired += machine.counts["expired"]
        assert shard.size == sum(map(len, shard.lanes.values()))
    assert expired


def test_typed_values_and_typed_states_reach_the_step(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, step=typed, decode=Payment, state_type=Balance, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", {"n": 1}), Sent(0, 1, "a", {"n": 2}), Sent(0, 2, "b", {"n": "x"}))
    pipeline.process(Sent(0, 3, "a", {"n": 3}))
    assert [row["seen"] for row in pipeline.sink.rows()] == [1, 3, 6]


@pytest.mark.parametrize("state", [(1, 2), {"at": (1, 2)}, {"tags": {"a"}}, [WaitReason.GAP]])
def test_a_state_that_is_read_back_differently_is_refused(tmp_path: Path, state: Any) -> None:
    """In this batch the step would see its own object, in the next one what was read back."""
    pipeline = Pipeline(tmp_path, step=lambda before, event: (state, []))
    with pytest.raises(InvalidOption, match="state_type"):
        pipeline.process(Sent(0, 0, "a", 0))


class Payment(msgspec.Struct):
    n: int


class Balance(msgspec.Struct):
    total: int


def typed(state: Balance | None, event: Event) -> tuple[Balance, list[dict[str, object]]]:
    assert state is None or isinstance(state, Balance)
    total = (state.total if state else 0) + event.value.n
    return Balance(total), [{"key": event.key, "n": event.value.n, "seen": total}]


def test_the_number_of_shards_cannot_change(tmp_path: Path) -> None:
    Pipeline(tmp_path, shards=4)
    with pytest.raises(InvalidOption, match="shards=8"):
        Pipeline(tmp_path, shards=8)


@pytest.mark.parametrize("bad", [{"n": (1, 2)}, {"n": {"deep": [{1}]}}, {"n": WaitReason.HELD}])
def test_a_later_state_of_the_same_type_is_checked_too(tmp_path: Path, bad: Any) -> None:
    """The first state is a dict that is read back unchanged; the second is a dict as well."""

    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return (bad if event.value == 1 else {"n": [1, {"x": None}], "m": 2.5}), []

    pipeline = Pipeline(tmp_path, step=step)
    pipeline.process(Sent(0, 0, "good", 0))
    with pytest.raises(UnfitState, match="'bad'"):
        pipeline.process(Sent(0, 1, "good", 0), Sent(0, 2, "bad", 1))
    pipeline.process(Sent(0, 1, "good", 0), Sent(0, 2, "fine", 0), again=True)
    assert show(tmp_path, "fine")[0].state == {"n": [1, {"x": None}], "m": 2.5}


class Numbered(msgspec.Struct):
    n: int


def test_a_state_that_does_not_fit_its_state_type_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    """Otherwise the next batch would fail, when the event that made it is gone."""

    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return Numbered("three" if event.value == 3 else event.value), []  # type: ignore[arg-type]

    pipeline = Pipeline(tmp_path, step=step, state_type=Numbered)
    pipeline.process(Sent(0, 0, "k", 1))
    with pytest.raises(UnfitState, match=r"key 'other'.*state_type.*Expected `int`"):
        pipeline.process(Sent(0, 1, "k", 2), Sent(0, 2, "other", 3))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"step": 5}, "step=5"),
        ({"outputs": "a text"}, "text"),
        ({"outputs": ""}, "column"),
        ({"decode": "xml"}, "decode='xml'"),
        ({"on_failure": "hold"}, "on_failure"),
        ({"on_gap": "wait"}, "on_gap"),
        ({"shards": 0}, "shards=0"),
        ({"sequence": 3}, "sequence=3"),
    ],
)
def test_wrong_options_are_refused_by_name_without_spark(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        Transitions(**({"step": counting, "outputs": OUTPUTS} | options))


class Shared(Pipeline):
    """A pipeline whose shards are shares of the keys, as after a shuffle."""

    def process(self, *messages: Sent, again: bool = False, settle: bool = True) -> dict[str, int]:
        self.batch += 1
        batch = Batch(QUERY, batch_number(self.batch), 1)
        ordered = arrow(sorted(messages, key=lambda each: (each.queue, each.offset)))
        shared = ordered.append_column(SHARD, pa.array([0] * ordered.num_rows, pa.int32()))
        self.stage._arranged = lambda frame: frame  # type: ignore[method-assign]
        return self._settle(self.stage.process(self.frame([[shared]]), batch), batch)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_key_in_two_queues_without_numbers_is_refused(tmp_path: Path, batches: int) -> None:
    """Rows are sorted by queue, so the event in queue 0 would come first, whichever was first in time."""
    first, second = Sent(0, 2, "k", 1), Sent(1, 2, "k", 2)
    pipeline = Shared(tmp_path, shards=1)
    pipeline.process(Sent(0, 1, "other", 1), Sent(1, 1, "another", 2))
    if batches == 2:
        pipeline.process(first)
    with pytest.raises(OrderError, match=r"key 'k' has messages in orders/broker-a/0 and in .*/1.* give sequence="):
        pipeline.process(*([first, second] if batches == 1 else [second]))


def test_a_key_with_a_typed_state_in_two_queues_is_refused(tmp_path: Path) -> None:
    pipeline = Shared(tmp_path, shards=1, step=typed, decode=Payment, state_type=Balance)
    pipeline.process(Sent(0, 0, "k", {"n": 1}))
    CACHE._shards.clear()
    with pytest.raises(OrderError, match="key 'k' has messages in"):
        pipeline.process(Sent(1, 0, "k", {"n": 2}))


def test_numbers_order_a_key_of_two_queues_by_default(tmp_path: Path) -> None:
    """Queues are read one after the other, so with on_gap="report" the events of the second queue would be late."""
    pipeline = Shared(tmp_path, shards=1, sequence="n")
    counts = pipeline.process(*(Sent(n % 2, n // 2, "k", {"n": n}) for n in range(1, 5)))
    assert pipeline.outputs("k") == [1, 2, 3, 4]
    assert (counts.get("dead_letters", 0), counts["lanes_held"]) == (0, 0)


@pytest.mark.parametrize("options", [{"sequence": "n"}, {"on_queue_change": "continue"}])
def test_a_key_in_two_queues_is_allowed_with_numbers_or_on_queue_change_continue(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    pipeline = Shared(tmp_path, shards=1, **options)
    pipeline.process(Sent(0, 0, "k", {"n": 1}), Sent(1, 0, "k", {"n": 2}))
    assert pipeline.outputs("k") == [1, 2]
