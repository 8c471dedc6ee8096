"""How long the keys of a lost member wait: one of two members is killed, or frozen, under load."""

import contextlib
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.peers.order import checked, verdict
from benchmarks.peers.processes import ClientFailed, until
from benchmarks.peers.race import Entrant, Race

KEYS, RATE, HANDLER_MS = 16, 400, 1
LOSSES = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
MEMBER_SECONDS = 60.0
"""Until both members share the queues: RocketMQ's look for each other every 20 s."""
Line = tuple[int, str, int]


def take_over(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.takes_over]
    trials = min(race.scale.rounds, 3)
    for loss in LOSSES:
        for number, each in race.turns(who, trials):
            with (
                race.attempt(each, f"take-over {loss}", round=number),
                tempfile.TemporaryDirectory(prefix="lanemq-peers-") as folder,
            ):
                seconds, repeats, judged = _trial(race, each, loss, Path(folder))
                more = {"round": number, "repeats": repeats, "verdict": judged}
                if seconds is None:
                    race.wrong(f"take-over {loss}", each, **more)
                else:
                    race.value(f"take-over {loss}", each, round(seconds, 2), "s", **more)


def _trial(race: Race, each: Entrant, loss: str, folder: Path) -> tuple[float | None, int, str]:
    """Seconds until every key continued, repeats, and the verdict; no seconds if some key did not continue in time."""
    topic = each.topic()
    words = {"do": "member", "group": "members", "handler_ms": HANDLER_MS, "session_ms": each.contender.session_ms}
    files = [folder / "first", folder / "second"]
    stop = folder / "stop"
    most = RATE * int(MEMBER_SECONDS + 2 * race.scale.patience + 60)
    members = [each.client(topic, lines=file, **words) for file in files]
    sender = each.client(topic, do="pace", count=most, rate=RATE, size=100, keys=KEYS, stop=stop)
    try:
        until(lambda: _shared(files), MEMBER_SECONDS, "two members that share the keys")
        lost_at = time.monotonic_ns()
        members[0].signal(LOSSES[loss])
        keys = {key for at, key, _ in _lines(files[0]) if at > lost_at - 1e9}
        try:
            until(lambda: keys <= _first_after(files[1], lost_at).keys(), race.scale.patience, "a take-over")
        except ClientFailed:
            return None, 0, f"no take-over within {race.scale.patience:.0f} s"
        waited = max(_first_after(files[1], lost_at)[key] for key in keys) - lost_at
        if loss == "freeze":
            members[0].signal(signal.SIGCONT)
        stop.touch()
        sent = sender.lines()[-1]["count"]
        with contextlib.suppress(ClientFailed):  # what is still missing then is lost: the verdict says so
            until(lambda: _distinct(files) >= sent, race.scale.patience, f"all {sent} messages handled")
    finally:
        for process in (*members, sender):
            process.close()
    check = checked((key, number) for _, key, number in sorted(_lines(files[0]) + _lines(files[1])))
    return waited / 1e9, check.repeats, verdict(check, sent)


def _lines(file: Path) -> list[Line]:
    if not file.exists():
        return []
    whole = file.read_text().rpartition("\n")[0].splitlines()
    return [(int(at), key, int(number)) for at, key, number in (line.split() for line in whole)]


def _shared(files: list[Path]) -> bool:
    """Whether both members have handled messages in the last second, and together all keys."""
    since = time.monotonic_ns() - 1e9
    recent = [{key for at, key, _ in _lines(file) if at > since} for file in files]
    return all(recent) and len(recent[0] | recent[1]) == KEYS


def _first_after(file: Path, moment: int) -> dict[str, int]:
    first: dict[str, int] = {}
    for at, key, _ in _lines(file):
        if at > moment:
            first.setdefault(key, at)
    return first


def _distinct(files: list[Path]) -> int:
    return len({(key, number) for file in files for _, key, number in _lines(file)})
