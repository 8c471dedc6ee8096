"""The memory watch of the benchmarks reports memory that is kept, not memory that is used for a moment."""

from benchmarks.memory_watch import Sample, growth, started_late

BATCHES = 10


def run(*sizes: float, pid: int = 1, start: int = 0) -> list[Sample]:
    """One process, one size after each batch from `start` on."""
    return [Sample(start + at, pid, "worker", size) for at, size in enumerate(sizes)]


def test_a_process_that_grows_with_every_batch_is_not_flat() -> None:
    (found,) = growth(run(*(100 + 10 * batch for batch in range(11))), BATCHES)
    assert (found.half, found.end) == (150, 180)
    assert not found.is_flat


def test_growth_before_the_half_is_warm_up() -> None:
    (found,) = growth(run(20, 40, 80, 160, 190, *[190] * 6), BATCHES)
    assert found.mib == 0
    assert found.is_flat


def test_a_chunk_on_its_way_is_not_growth() -> None:
    """Samples between chunks, within chunks, and within a chunk at the end."""
    (found,) = growth(run(*[190] * 5, 214, 190, 214, 190, 214, 217), BATCHES)
    assert found.is_flat


def test_processes_are_judged_each_by_itself() -> None:
    """A process that shrinks must not hide one that grows."""
    grows, shrinks = run(*range(100, 210, 10)), run(*range(300, 190, -10), pid=2)
    found = growth([*grows, *shrinks], BATCHES)
    assert [each.is_flat for each in found] == [False, True]


def test_a_process_that_started_late_is_counted_and_not_judged() -> None:
    late = run(500, 600, pid=3, start=9)
    assert len(growth([*run(*[100] * 11), *late], BATCHES)) == 1
    assert started_late([*run(*[100] * 11), *late], BATCHES) == 1
    assert started_late(run(*[100] * 11), BATCHES) == 0
