"""A group continues at its first unfinished message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mirror.simulated_copy import MIRROR, TOPIC, Session, Target, queues
from tests.mirror.test_resume import filled

from lanemq.client.copies import origin_of
from lanemq.mirror import positions
from lanemq.mirror.positions import first_unfinished
from lanemq.mirror.queue_mapping import QueueMapping


@pytest.fixture(autouse=True)
def _bisects_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "SCAN", 3)


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", "c", None])), max_size=80),
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
    st.integers(0, 80),
)
def test_bisecting_finds_what_reading_everything_finds(
    here: int, there: int, sent: list[tuple[int, str | None]], finished: list[int], foreign: int
) -> None:
    source, target = filled(here, sent), Target(queues("to", there), stamps=True)
    plan = [(number, 4) for number in range(40)]
    for request in Session(source, QueueMapping(list(source), target.queues), target).requests(plan):
        target.store(request)
    done = dict(zip(source, finished, strict=False))
    for queue in target.queues:
        texts = target.stored[queue]
        if foreign < len(texts):
            texts.insert(foreign, "UNIQ_KEY\x01other\x02")
        offsets = [origin_of(text, TOPIC) for text in texts]
        expected = next(
            (at for at, each in enumerate(offsets) if each is None or each.offset >= done[each.queue]), len(texts)
        )
        found = first_unfinished(
            lambda start, end, texts=texts: list(enumerate(texts))[start:end],  # type: ignore[misc]
            0, len(texts), done, MIRROR, TOPIC,
        )  # fmt: skip
        assert found == expected


def test_a_long_queue_is_not_read_as_a_whole() -> None:
    source, target = filled(1, [(0, "a")] * 1000), Target(queues("to", 1), stamps=True)
    for request in Session(source, QueueMapping(list(source), target.queues), target).requests([(0, 10)] * 100):
        target.store(request)
    texts, read = target.stored[target.queues[0]], 0

    def reading(start: int, end: int):  # type: ignore[no-untyped-def]
        nonlocal read
        for offset in range(start, end):
            read += 1
            yield offset, texts[offset]

    assert first_unfinished(reading, 0, 1000, {next(iter(source)): 730}, MIRROR, TOPIC) == 730
    assert read < 200
