"""The type of the states changes between two starts: what can be read is, and what cannot is refused by name."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import Pipeline, Sent

from lanemq.model.errors import InvalidOption
from lanemq.pipelines import Event
from lanemq.pipelines.operate.parked import show
from lanemq.pipelines.stages.transitions import stage
from lanemq.pipelines.stages.transitions.shard import CACHE
from lanemq.pipelines.stages.transitions.state_schema import check_state_schema, state_schema


class Item(msgspec.Struct):
    name: str


class Order(msgspec.Struct):
    total: int
    note: str = ""


class WithMore(msgspec.Struct):
    total: int
    note: str = ""
    items: list[Item] = []
    ratio: float | None = None


class WithLess(msgspec.Struct):
    total: int


class WithNew(msgspec.Struct):
    total: int
    customer: str


class OtherTotal(msgspec.Struct):
    total: str


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    total: int


class Tree(msgspec.Struct):
    below: list["Tree"]


class NamedTree(msgspec.Struct):
    below: list["NamedTree"]
    name: str


class Wider(msgspec.Struct):
    total: float | str
    note: str | None = None


def adding(state_type: Any) -> Any:
    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        if state is None:
            state = state_type(total=0)
        state.total += 1
        return state, [{"key": event.key, "n": event.value, "seen": state.total}]

    return step


def restarted(folder: Path, state_type: Any, **options: Any) -> Pipeline:
    """A pipeline with a key whose state was written as `Order`, started again with another type."""
    running = Pipeline(folder, step=adding(Order), state_type=Order)
    running.process(Sent(0, 0, "a", 1), Sent(0, 1, "a", 2))
    CACHE._shards.clear()
    running.restart(step=adding(state_type), state_type=state_type, **options)
    return running


@pytest.mark.parametrize("state_type", [WithMore, WithLess])
def test_a_type_with_more_or_fewer_fields_reads_the_old_states(tmp_path: Path, state_type: Any) -> None:
    running = restarted(tmp_path, state_type)
    running.process(Sent(0, 2, "a", 3))
    assert [row["seen"] for row in running.sink.rows()] == [1, 2, 3]
    assert set(show(tmp_path, "a")[0].state) == {*state_type.__struct_fields__}  # type: ignore[call-overload]
    CACHE._shards.clear()
    running.restart(step=adding(Order), state_type=Order)
    running.process(Sent(0, 3, "a", 4))
    assert running.sink.rows()[-1]["seen"] == 4


@pytest.mark.parametrize(
    ("state_type", "named"),
    [
        (WithNew, "field 'customer' of the state is new and has no default"),
        (OtherTotal, "field 'total' of the state was integer and is now string"),
        (Strict, "field 'note' of the state is gone, and the type forbids unknown fields"),
    ],
)
def test_a_type_that_cannot_read_the_old_states_is_refused_at_the_start(
    tmp_path: Path, state_type: Any, named: str
) -> None:
    with pytest.raises(InvalidOption, match=named):
        restarted(tmp_path, state_type)


def test_without_the_check_at_the_start_a_batch_of_other_keys_writes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control. The batch that meets an old state is refused, and names it."""
    monkeypatch.setattr(stage, "check_state_schema", lambda *_: None)

    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return WithNew(1, "x"), [{"key": event.key, "n": event.value, "seen": 1}]

    running = restarted(tmp_path, WithNew)
    running.restart(step=step)
    running.process(Sent(0, 2, "b", 3))
    assert running.outputs("b") == [3]
    with pytest.raises(InvalidOption, match=r"'total': 2.+missing required field `customer`"):
        running.process(Sent(0, 3, "a", 4))


def test_upgrade_state_converts_old_states_when_their_key_comes(tmp_path: Path) -> None:
    def upgrade(old: dict[str, Any]) -> WithNew:
        return WithNew(old["total"] * 100, "unknown")

    running = restarted(tmp_path, WithNew, upgrade_state=upgrade)
    running.process(Sent(0, 2, "a", 3))
    assert show(tmp_path, "a")[0].state == {"total": 201, "customer": "unknown"}
    running.process(Sent(0, 3, "a", 3))
    assert show(tmp_path, "a")[0].state == {"total": 202, "customer": "unknown"}


def test_an_upgrade_that_fails_is_refused_and_shows_the_state(tmp_path: Path) -> None:
    running = restarted(tmp_path, WithNew, upgrade_state=lambda old: {"total": old["sum"]})
    with pytest.raises(InvalidOption, match=r"upgrade_state failed for the stored state .'total': 2.+KeyError"):
        running.process(Sent(0, 2, "a", 3))
    assert len(running.sink.rows()) == 2


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        (Order, Wider, True),
        (Wider, Order, False),
        (int, float, True),
        (float, int, False),
        (list[Item], list[Item], True),
        (list[int], list[str], False),
        (dict[str, int], dict[str, str], False),
        (dict[str, int], dict[str, int], True),
        (int, Any, True),
        (Tree, Tree, True),
        (Tree, NamedTree, False),
        (NamedTree, Tree, True),
    ],
)
def test_which_types_read_which_states(old: Any, new: Any, fits: bool) -> None:
    try:
        check_state_schema(state_schema(old), state_schema(new), "here")
    except InvalidOption:
        assert not fits
    else:
        assert fits


def test_a_type_that_cannot_be_described_is_not_checked() -> None:
    assert state_schema(None) is None
    assert state_schema(object()) is None
    check_state_schema(None, state_schema(int), "here")
