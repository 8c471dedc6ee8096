"""A mirror under another name: another spelling of an address must not copy anything a second time."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner, Result
from tests.mirror.pair import Pair, by_key, send, stored

from lanemq.cli.main import main
from lanemq.client.admin.admin import Admin
from lanemq.client.message import Message
from lanemq.mirror.copying import Mirror, MirrorOptions
from lanemq.mirror.ends import Side
from lanemq.mirror.others import CopiedBefore, OtherMirrors
from lanemq.mirror.verifying import compare
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue


def respelled(address: str) -> str:
    assert address.startswith("127.0.0.1:")
    return address.replace("127.0.0.1", "localhost")


def other(options: MirrorOptions) -> MirrorOptions:
    """The same two sides under another name."""
    return replace(options, source=respelled(options.source))


def call(options: MirrorOptions, *words: str) -> Result:
    topics = options.topics
    return CliRunner().invoke(
        main, ["mirror", words[0], *topics, *words[1:], "--from", options.source, "--to", options.target]
    )


def test_another_spelling_of_the_source_copies_nothing_and_names_the_mirror_to_go_on_with(pair: Pair) -> None:
    pair.create("spelled", 4, 3)
    send(pair.source, "spelled", 40)
    pair.drain("spelled")
    options = pair.options("spelled")
    with pytest.raises(CopiedBefore, match=f"--name {options.mirror}"):
        Mirror(other(options)).run(until_drained=True)
    assert by_key(pair.target, "spelled") == by_key(pair.source, "spelled")
    assert Mirror(replace(other(options), name=options.mirror)).run(until_drained=True).copied == 0


def test_a_cut_over_under_another_name_fails_before_the_source_is_sealed(pair: Pair) -> None:
    pair.create("sealed-twice")
    send(pair.source, "sealed-twice", 20)
    pair.drain("sealed-twice")
    done = call(other(pair.options("sealed-twice")), "cut-over", "--seal")
    assert done.exit_code == 1
    assert "use --name" in done.stdout
    assert "the source refuses sends" not in done.stdout
    send(pair.source, "sealed-twice", 1)


def test_the_way_back_under_another_name_returns_nothing(pair: Pair) -> None:
    pair.create("back-again")
    send(pair.source, "back-again", 30)
    pair.drain("back-again")
    with pytest.raises(CopiedBefore, match="on the way back, use --name"):
        Mirror(other(pair.options("back-again", back=True))).run(until_drained=True)
    assert len(stored(pair.source, "back-again")) == 30


def test_another_spelling_of_one_broker_is_not_a_target(pair: Pair) -> None:
    pair.create("onto-itself")
    send(pair.source, "onto-itself", 10)
    options = MirrorOptions(source=pair.source, target=respelled(pair.source), topics=("onto-itself",))
    with pytest.raises(InvalidOption, match="cannot be copied onto itself"):
        Mirror(options).run(until_drained=True)
    assert len(stored(pair.source, "onto-itself")) == 10


def test_verification_finds_what_two_mirrors_copied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the guard removed, everything is copied twice: the control of the tests above."""
    pair.create("twice-copied")
    send(pair.source, "twice-copied", 40)
    pair.drain("twice-copied")
    options = pair.options("twice-copied")
    with monkeypatch.context() as patched:
        patched.setattr(OtherMirrors, "see", lambda *_: None)
        assert Mirror(other(options)).run(until_drained=True).copied == 40
        assert compare(options).equal
    for each in (options, other(options)):
        found = compare(each)
        assert not found.equal
        assert "the target also has" in found.differences[0]
    assert call(options, "verify").exit_code == 1


def test_copies_of_another_source_are_left_alone(pair: Pair) -> None:
    """Another topic of the same name, at a broker of the same name: the places agree and the messages do not."""
    pair.create("merged", 1, 1)
    send(pair.source, "merged", 10)
    Mirror(replace(pair.options("merged"), name="first")).run(until_drained=True)
    with Admin(pair.source) as admin:
        admin.delete_topic("merged")
        admin.create_topic("merged", 1, ordered=True)
    send(pair.source, "merged", 10)
    second = replace(pair.options("merged"), name="second")
    assert Mirror(second).run(until_drained=True).copied == 10
    found = compare(second)
    assert found.equal
    assert found.not_copies == 10


def test_a_chain_of_mirrors_does_not_take_its_own_copies_for_originals() -> None:
    """A to B to C, with brokers of one name: C has the message where A has it, because this mirror put it there."""
    queue = MessageQueue("orders", "lanemq", 0)
    at_c = _message("UNIQ_KEY\x01id\x02LANE_ORIGIN\x01onwards:0:0:lanemq\x02")
    at_b = _message("UNIQ_KEY\x01id\x02LANE_ORIGIN\x01first:0:0:lanemq\x02")
    side = cast(
        Side,
        SimpleNamespace(
            route=lambda _: SimpleNamespace(subscribe=(queue,)), bounds=lambda _: (0, 1), read_one=lambda *_: at_c
        ),
    )
    for mirror, expected in (("onwards", 0), ("renamed", 1)):
        seen = OtherMirrors(mirror, "orders", side)
        seen.see(at_b)
        assert len(list(seen.found())) == expected


def _message(text: str) -> Message:
    return cast(Message, SimpleNamespace(properties_text=text, message_id="id", body=b"{}"))
