"""A run of `make bench-peers`: what is missing is skipped, what fails is reported, LaneMQ passes the check."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.__main__ import available
from benchmarks.peers.contenders import CONTENDERS, OURS, Contender
from benchmarks.peers.paths.cold_reader import cold_reader
from benchmarks.peers.paths.consuming import consuming, slow_handler
from benchmarks.peers.paths.many_clients import many_clients
from benchmarks.peers.paths.sending import sending
from benchmarks.peers.paths.sustained import sustained
from benchmarks.peers.paths.ten_groups import ten_groups
from benchmarks.peers.processes import ClientFailed, PeerServer
from benchmarks.peers.race import QUICK, Entrant, Race, Records
from interop.maven import UnavailableError

OWN = next(each for each in CONTENDERS if each.name == OURS)


class NoServer(PeerServer):
    name = "none"


def unavailable() -> list[str]:
    raise UnavailableError("java is not installed: install a JDK (17 or later) and Maven")


def contender(name: str) -> Contender:
    return Contender(name, NoServer, lambda: ["true"], "")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_contender_that_cannot_be_fetched_is_skipped_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    there, missing = contender("there"), replace(contender("missing"), command=unavailable)
    assert available([], [missing, there]) == [there]
    assert capsys.readouterr().err == (
        "skipped: missing: java is not installed: install a JDK (17 or later) and Maven\n"
    )


class BrokenServer(PeerServer):
    """A server whose process ends at once."""

    name = "broken"

    def start(self) -> None:
        self.run(["sh", "-c", "echo no license; exit 1"])

    def is_ready(self) -> bool:
        return False


def test_a_contender_whose_server_does_not_start_is_skipped_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, records = replace(contender("x"), server=BrokenServer), Records(tmp_path / "rounds.jsonl")
    with Race([broken, OWN], [broken, OWN], QUICK, records).running(durable=False) as race:
        assert [each.name for each in race.entrants] == [OURS]
    records.close()
    assert capsys.readouterr().err == ("skipped: all that need broken, relaxed: broken did not start: no license\n")


def test_a_contender_that_fails_on_a_path_is_reported_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = Records(tmp_path / "rounds.jsonl")
    race = Race([], [], QUICK, records)
    race.mode = "relaxed"
    with race.attempt(Entrant(contender("x"), NoServer(durable=False), [], []), "consume"):
        raise ClientFailed("the client failed: no memory")
    records.close()
    assert "failed: x, consume, relaxed: the client failed: no memory" in capsys.readouterr().err
    assert lines(tmp_path / "rounds.jsonl")[0]["failed"] == "the client failed: no memory"


def test_each_round_begins_with_another_contender(tmp_path: Path) -> None:
    records = Records(tmp_path / "rounds.jsonl")
    race = Race([], [], replace(QUICK, rounds=3), records)
    who = [Entrant(contender(name), NoServer(durable=False), [], []) for name in "abc"]
    assert "".join(each.name for _, each in race.turns(who)) == "abcbcacab"
    records.close()


@pytest.mark.extended
def test_lanemq_passes_its_own_run(tmp_path: Path) -> None:
    records = Records(tmp_path / "rounds.jsonl")
    scale = replace(QUICK, send_ms=20, read=2_000, read_ms=20, slow=10, sustained_bytes=400_000, cold=1_000)
    with Race([OWN], CONTENDERS, scale, records).running(durable=False) as race:
        for path in (sending, consuming, slow_handler, many_clients, sustained, ten_groups, cold_reader):
            path(race)
    records.close()
    measured = lines(tmp_path / "rounds.jsonl")
    others = ["consume", "slow handler", "send clients", "send sustained", "ten groups", "cold reader"]
    assert [each["path"] for each in measured] == [*(f"send {way}" for way in OWN.ways), *others]
    assert {each["verdict"] for each in measured} == {"pass"}
