"""Back to the source after a cut-over, and there again."""

import pytest
from click.testing import CliRunner, Result
from tests.mirror.pair import Pair, assert_continues, by_key, send, stored
from tests.mirror.test_moving_groups import consume

from lanemq.cli.main import main
from lanemq.client.admin.admin import Admin
from lanemq.mirror import positions
from lanemq.mirror.positions import OwnMessages
from lanemq.model.errors import NotAllowed


def call(source: str, target: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["mirror", *words, "--from", source, "--to", target])


def passes(source: str, target: str, *words: str) -> None:
    done = call(source, target, *words)
    assert done.exit_code == 0, done.output


def finish(address: str, topic: str, group: str, count: int) -> list[tuple[str | None, int]]:
    """The group reads and finishes so many messages, waiting for them."""
    got: list[tuple[str | None, int]] = []
    while len(got) < count:
        got += consume(address, topic, group, count - len(got))
    return got


def left_for(address: str, topic: str, group: str) -> int:
    with Admin(address) as admin:
        return sum(each.lag for each in admin.describe_group(group).queues if each.queue.topic == topic)


@pytest.mark.parametrize(("here", "there"), [(4, 3)])
def test_a_group_moves_there_back_and_there_again_without_losing_or_repeating(
    pair: Pair, here: int, there: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "SCAN", 7)
    topic, group = f"return-{here}-{there}", f"ship-{here}-{there}"
    pair.create(topic, here, there)
    sides, sent = [pair.source, pair.target], 0
    for number in range(3):
        source, target = sides[number % 2], sides[(number + 1) % 2]
        send(source, topic, 40, first=sent)
        sent += 40
        finish(source, topic, group, 40)
        if number:
            passes(source, target, "unseal", topic)
        passes(source, target, "run", topic, "--until-drained")
        passes(source, target, "cut-over", topic, "--seal", "--group", group)
        assert left_for(target, topic, group) == 0
        with pytest.raises(NotAllowed):
            send(source, topic, 1)
    assert by_key(pair.source, topic) == by_key(pair.target, topic)
    assert {key: numbers == list(range(12)) for key, numbers in by_key(pair.source, topic).items()} == {
        f"k{number}": True for number in range(10)
    }


@pytest.mark.parametrize(("here", "there"), [(4, 4), (2, 5)])
def test_on_the_way_back_a_group_goes_on_at_its_first_unfinished_message(pair: Pair, here: int, there: int) -> None:
    topic, group = f"halfway-{here}-{there}", f"slow-{here}-{there}"
    pair.create(topic, here, there)
    send(pair.source, topic, 100)
    passes(pair.source, pair.target, "cut-over", topic, "--seal")
    send(pair.target, topic, 40, first=100)
    before = finish(pair.target, topic, group, 60)
    passes(pair.target, pair.source, "unseal", topic)
    passes(pair.target, pair.source, "cut-over", topic, "--seal", "--group", group)
    after = finish(pair.source, topic, group, left_for(pair.source, topic, group))
    assert_continues(by_key(pair.source, topic), before, after, once_each=here == there)


def test_without_the_origins_at_the_source_a_group_starts_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    pair.create("from-start")
    send(pair.source, "from-start", 40)
    passes(pair.source, pair.target, "cut-over", "from-start", "--seal")
    finish(pair.target, "from-start", "starts-again", 40)
    passes(pair.target, pair.source, "unseal", "from-start")
    monkeypatch.setattr(OwnMessages, "finished", lambda *_: False)
    passes(pair.target, pair.source, "cut-over", "from-start", "--group", "starts-again", "--quiet", "0s")
    assert left_for(pair.source, "from-start", "starts-again") == 40


def test_a_cut_over_to_a_sealed_target_seals_nothing_and_names_the_command_that_helps(pair: Pair) -> None:
    pair.create("both-sealed")
    send(pair.source, "both-sealed", 20)
    passes(pair.source, pair.target, "cut-over", "both-sealed", "--seal")
    send(pair.target, "both-sealed", 10, first=20)
    refused = call(pair.target, pair.source, "cut-over", "both-sealed", "--seal")
    assert refused.exit_code == 1
    assert "failed  ready: " in refused.stdout
    assert f"lanemq mirror unseal both-sealed --from '{pair.target}' --to '{pair.source}'" in refused.stdout
    send(pair.target, "both-sealed", 10, first=30)
    passes(pair.target, pair.source, "unseal", "both-sealed")
    passes(pair.target, pair.source, "cut-over", "both-sealed", "--seal")
    assert len(stored(pair.source, "both-sealed")) == 40
    passes(pair.target, pair.source, "cut-over", "both-sealed", "--undo")
    send(pair.target, "both-sealed", 10, first=40)
