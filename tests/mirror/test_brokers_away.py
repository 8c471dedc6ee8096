"""A broker of a cluster that is away: its queues must not be left out without a word."""

from dataclasses import replace

import pytest
from tests.mirror.pair import Pair, send

from lanemq.client.topic_route import TopicRoute
from lanemq.mirror.copying import Mirror
from lanemq.mirror.cut_over import CutOver
from lanemq.mirror.ends import BrokersAway, Side
from lanemq.mirror.positions import translate
from lanemq.mirror.verifying import compare
from lanemq.model.queue import MessageQueue


@pytest.fixture
def topic(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic whose layout at the source has a queue on broker `gone`, which no name server lists."""
    name = "half"
    pair.create(name, 2, 2)
    send(pair.source, name, 20)
    real = Side.route

    def route(side: Side, topic: str) -> TopicRoute:
        found = real(side, topic)
        more = (MessageQueue(topic, "gone", 0),) if side.servers == pair.source else ()
        return replace(found, publish=(*found.publish, *more))

    monkeypatch.setattr(Side, "route", route)
    return name


def test_nothing_is_copied_compared_sealed_or_moved_while_a_broker_of_the_source_is_away(
    pair: Pair, topic: str
) -> None:
    options = pair.options(topic)
    for act in (
        Mirror(options).check,
        lambda: Mirror(options).run(until_drained=True),
        lambda: compare(options),
        lambda: translate(options),
        lambda: compare(pair.options(topic, back=True)),
        CutOver(options).undo,
    ):
        with pytest.raises(BrokersAway, match="without a master at the moment: gone"):
            act()
    for seal in (True, False):
        (step,) = CutOver(options, seal=seal, quiet=0).steps()
        assert (step.name, step.passed) == ("ready", False)
        assert "start them, then try again" in step.text
    send(pair.source, topic, 1)


def test_without_the_check_a_mirror_says_that_nothing_is_left(
    pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(Side, "full_route", Side.route)
    assert Mirror(pair.options(topic)).run(until_drained=True).left == 0
    assert compare(pair.options(topic)).equal


def test_copies_of_a_queue_that_the_source_does_not_list_are_a_difference(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic without a layout: name servers do not list the queues of a broker that is away."""
    pair.create("unlisted", 2, 2, ordered=False)
    send(pair.source, "unlisted", 20)
    pair.drain("unlisted")
    real = Side.route

    def route(side: Side, topic: str) -> TopicRoute:
        found = real(side, topic)
        return replace(found, subscribe=found.subscribe[:1]) if side.servers == pair.source else found

    monkeypatch.setattr(Side, "route", route)
    found = compare(pair.options("unlisted"))
    assert not found.equal
    assert "which the source does not list: is its broker away?" in found.differences[0]
