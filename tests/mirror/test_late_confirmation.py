"""A target that has stored copies, and whose replicas have not confirmed them: a fail-over may lose them."""

import pytest
from tests.mirror.pair import Pair, by_key, send

from lanemq.mirror import copying
from lanemq.mirror.copying import Mirror
from lanemq.mirror.ends import TargetLink
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The target answers every copy with "replicas are late", and the first few markers too."""
    calls = {"marks": 0, "until": 0}
    sends, marks = TargetLink.send, TargetLink.mark

    def send_late(link: TargetLink, command: Command) -> Command:
        reply = sends(link, command)
        if reply.code == ResponseCode.SUCCESS and not command.ext["b"].startswith("mirrored-"):
            reply.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        return reply

    def mark(link: TargetLink) -> int | None:
        calls["marks"] += 1
        return marks(link) if calls["marks"] > calls["until"] else None

    monkeypatch.setattr(TargetLink, "send", send_late)
    monkeypatch.setattr(TargetLink, "mark", mark)
    monkeypatch.setattr(copying, "COMMIT_MS", 0)
    monkeypatch.setattr(copying, "CERTAIN_MS", 0)
    return calls


def hints(pair: Pair, topic: str) -> int:
    with pair.options(topic).open_source() as source:
        return sum(source.committed(queue) or 0 for queue in source.route(topic).subscribe)


def test_a_mirror_is_drained_when_the_replicas_have_confirmed_everything(pair: Pair, late: dict[str, int]) -> None:
    pair.create("late")
    send(pair.source, "late", 100)
    late["until"] = 5
    report = pair.drain("late")
    assert (report.copied, report.left) == (100, 0)
    assert late["marks"] >= 6
    assert by_key(pair.target, "late") == by_key(pair.source, "late")
    assert hints(pair, "late") == 100


def test_a_copy_that_is_not_confirmed_is_not_counted_as_copied_at_the_source(pair: Pair, late: dict[str, int]) -> None:
    pair.create("never")
    send(pair.source, "never", 100)
    late["until"] = 10**9

    def stop(report: copying.MirrorReport) -> None:
        if report.copied == 100 and late["marks"] >= 6:
            mirror.stop()

    mirror = Mirror(pair.options("never"), report=stop)
    mirror.run(until_drained=True)
    assert hints(pair, "never") == 0


def test_without_the_check_it_would_be(pair: Pair, late: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    pair.create("trusted")
    send(pair.source, "trusted", 100)
    late["until"] = 10**9
    monkeypatch.setattr(copying, "LATE_CODES", frozenset())
    pair.drain("trusted")
    assert hints(pair, "trusted") == 100
