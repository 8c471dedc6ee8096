"""Rounds of two versions of the code never make one figure of `make bench-peers`."""

from typing import Any

import pytest
from benchmarks.peers.__main__ import _options, parts_of
from benchmarks.peers.versions import MixedVersionsError, check_unmixed, code_id, kept

SENDING = {("sending", "relaxed")}


def record(group: str, code: str, mode: str = "relaxed") -> dict[str, Any]:
    return {"group": group, "mode": mode, "code": code}


def test_rounds_of_other_paths_and_of_the_same_code_stay() -> None:
    rounds = [record("consuming", "old"), record("sending", "new"), record("sending", "old", "durable")]
    assert kept(rounds, SENDING, "new", everyone=True) == (rounds, 0)


def test_rounds_of_the_same_path_that_measured_other_code_are_replaced() -> None:
    rounds = [record("sending", "old"), record("consuming", "old")]
    assert kept(rounds, SENDING, "new", everyone=True) == ([rounds[1]], 1)


def test_a_run_of_some_contenders_does_not_replace_a_run_of_all() -> None:
    with pytest.raises(MixedVersionsError, match="1 rounds of these paths were measured with other code"):
        kept([record("sending", "old")], SENDING, "new", everyone=False)


def test_a_page_of_mixed_rounds_is_refused() -> None:
    check_unmixed([record("sending", "a"), record("sending", "b", "durable"), record("consuming", "b")])
    with pytest.raises(MixedVersionsError, match="sending, relaxed"):
        check_unmixed([record("sending", "a"), record("sending", "b")])


def test_the_code_of_a_checkout_has_an_id() -> None:
    assert len(code_id()) == 12


def test_a_run_measures_the_chosen_paths() -> None:
    assert parts_of(_options(["--paths", "sending,slow"])) == {*SENDING, ("sending", "durable"), ("slow", "relaxed")}
    assert parts_of(_options(["--paths", "latency", "--mode", "durable"])) == {("latency", "durable")}
    assert ("take-over", "relaxed") not in parts_of(_options(["--without", "take-over"]))


def test_an_unknown_path_is_refused_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _options(["--paths", "latencies"])
    assert "no paths called latencies: choose from disk, clients, sending" in capsys.readouterr().err
