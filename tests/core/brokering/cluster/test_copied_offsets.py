"""Which offsets are copied, and which were set by somebody else."""

from lanemq.core.brokering.cluster.copied_offsets import REMEMBERED, CopiedOffsets, SetByOthers
from lanemq.model.queue import MessageQueue

Q = MessageQueue("t", "b", 0)


def copied(*offsets: int) -> CopiedOffsets:
    made = CopiedOffsets()
    for offset in offsets:
        made.copied({Q: offset})
    return made


def test_an_offset_that_moved_is_copied() -> None:
    assert copied(5).compare({Q: 9}, {Q: 5}) == ({Q: 9}, [])
    assert copied(5).compare({Q: 5}, {Q: 5}) == ({}, [])
    assert copied(5).compare({Q: 5}, {}) == ({Q: 5}, [])


def test_an_offset_that_is_no_copy_was_set_by_somebody_else() -> None:
    assert copied(5, 9).compare({Q: 12}, {Q: 7}) == ({}, [SetByOthers(Q, 7, 12)])


def test_a_new_master_may_have_an_older_copy() -> None:
    assert copied(5, 9, 12).compare({Q: 12}, {Q: 5}) == ({Q: 12}, [])


def test_without_any_copy_the_offset_there_is_overwritten() -> None:
    assert CopiedOffsets().compare({Q: 12}, {Q: 5}) == ({Q: 12}, [])


def test_after_a_reset_by_an_operator_too() -> None:
    copies = copied(5)
    copies.overwrite("t", 1)
    assert copies.compare({Q: 12}, {Q: 7})[1]
    copies.overwrite("t", 0)
    assert copies.compare({Q: 12}, {Q: 7}) == ({Q: 12}, [])


def test_the_last_copies_are_remembered() -> None:
    assert copied(*range(100)).copies == {Q: [*range(100 - REMEMBERED, 100)]}
    again = CopiedOffsets(copied(*range(100)).copies)
    assert again.compare({Q: 120}, {Q: 99})[0]


def test_a_broker_that_runs_on_goes_back_only_if_somebody_has_set_it() -> None:
    copies = copied(5, 9, 12)
    assert copies.compare({Q: 12}, {Q: 9}, before={Q: 5})[0], "a copy that was on its way"
    assert copies.compare({Q: 12}, {Q: 5}, before={Q: 12}) == ({}, [SetByOthers(Q, 5, 12)])
    assert copies.compare({Q: 12}, {Q: 5}, before={Q: 5}) == ({}, [SetByOthers(Q, 5, 12)]), "also at every later look"
    assert copies.compare({Q: 12}, {Q: 9}) == ({Q: 12}, [])
