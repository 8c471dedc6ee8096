"""The fair queue: an item waits for one item of each other party, whatever they have added."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.brokering.fair_queue import FairQueue

Item = tuple[str, int, int]


def drained(items: list[Item]) -> list[Item]:
    queue = FairQueue[Item]()
    for item in items:
        queue.add(item[0], item[1], item)
    found = []
    while (item := queue.next()) is not None:
        found.append(item)
    return found


def test_parties_and_their_connections_take_turns() -> None:
    items = [("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("a", 2, 1), ("b", 3, 1), ("b", 3, 2)]
    assert drained(items) == [("a", 1, 1), ("b", 3, 1), ("a", 2, 1), ("b", 3, 2), ("a", 1, 2), ("a", 1, 3)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3))))
def test_everything_comes_out_once_and_each_connection_in_its_order(added: list[tuple[str, int]]) -> None:
    items = [(party, connection, number) for number, (party, connection) in enumerate(added)]
    found = drained(items)
    assert sorted(found) == sorted(items)
    for of in {item[:2] for item in items}:
        mine = [number for *place, number in found if tuple(place) == of]
        assert mine == sorted(mine)
