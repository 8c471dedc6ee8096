"""Reading a range of a queue: all of it, or an error."""

import pytest
from tests.mirror.pair import Pair, send

from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.mirror.verifying import compare
from lanemq.model.errors import RequestTimedOut


def test_a_queue_that_gives_nothing_before_its_end_is_an_error_and_not_a_short_queue(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is behind, or messages that are stored and not readable yet."""
    pair.create("stalled", 1, 1)
    send(pair.source, "stalled", 10)
    pair.drain("stalled")
    monkeypatch.setattr(PullConsumer, "_pull", lambda *_, **__: [])
    with pytest.raises(RequestTimedOut, match="has messages up to offset 10, and none can be read from offset 0 on"):
        compare(pair.options("stalled"))
