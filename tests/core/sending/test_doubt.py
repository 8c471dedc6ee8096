"""A message is reported as not stored only if every attempt at it was refused."""

import pytest
from tests.core.sending.test_queue_sender import LATER, NOW, fail, given_one_by_one, new_sender, take

from lanemq.core.sending.sent_window import Failed, SendError


@pytest.mark.parametrize("error", [SendError.REFUSED, SendError.FATAL])
def test_a_refusal_after_a_lost_reply_means_unknown(error: SendError) -> None:
    sender = new_sender(window=2)
    sender.append(("a0", "a1"), (10, 10), now=NOW)
    fail(sender, take(sender, count=1), SendError.RETRY, now=NOW)
    again = take(sender, count=1, now=LATER)
    assert fail(sender, again, error, now=LATER) == Failed(error, unknown=("a0",), blocked=("a1",))


def test_a_gap_after_a_lost_reply_means_not_stored() -> None:
    sender = given_one_by_one(1)
    fail(sender, take(sender), SendError.RETRY, now=NOW)
    assert fail(sender, take(sender, now=LATER), SendError.GAP, now=LATER) == Failed(SendError.GAP, refused=("m0",))


def test_each_part_of_a_refused_batch_is_in_doubt_if_the_batch_was() -> None:
    sender = new_sender()
    sender.append(("a0", "b0"), (10, 10), now=NOW)
    fail(sender, take(sender), SendError.RETRY, now=NOW)
    fail(sender, take(sender, now=LATER), SendError.REFUSED, now=LATER)
    assert fail(sender, take(sender, now=LATER), SendError.REFUSED, now=LATER) == Failed(
        SendError.REFUSED, unknown=("a0",)
    )
