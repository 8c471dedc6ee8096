"""Cutting a history into shards loses nothing, shown without Spark on hundreds of random histories.

A few lines of Python do what Spark does in between: find routes and bring pieces together.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.checker.conftest import parse
from tests.checker.test_members_without_history import UNDECIDED
from tests.checker.test_planted_violations import PLANTED
from tests.pipelines.audit.garbage import garbage
from tests.pipelines.audit.histories import write_history

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.reading import find_files
from lanemq.checker.verdict import Findings, Report
from lanemq.pipelines.audit import judging
from lanemq.pipelines.audit.job import add_results, report_of
from lanemq.pipelines.audit.routing import UNKNOWN_QUEUE, WHOLE_TOPIC, Topics
from lanemq.pipelines.audit.scanning import FileFacts, Files, files_of, name_of, scan_messages, scan_pieces

STRICT = CheckOptions(slack_ns=0)
DRAINED = CheckOptions(slack_ns=0, drained=True)


class Routes:
    """`routing.find_routes` in plain Python."""

    def __init__(self, places: list[dict[str, Any]]) -> None:
        self.irregular = {row["topic"] for row in places if row["whole"]}
        firsts = sorted((row["t"], row["file"], row["pos"], row["topic"]) for row in places if row["t"] is not None)
        self.first_sends = {topic: (t, file, pos) for t, file, pos, topic in reversed(firsts)}
        self.queues: dict[tuple[str, str], set[str]] = {}
        keys: dict[tuple[str, str], set[str]] = {}
        queues: dict[tuple[str, str], set[str]] = {}
        for row in places:
            if row["key"] is not None:
                keys.setdefault((row["topic"], row["id"]), set()).add(row["key"])
            if row["queue"] is not None:
                queues.setdefault((row["topic"], row["id"]), set()).add(row["queue"])
        for (topic, id), names in keys.items():
            seen = self.queues.setdefault((topic, name_of(min(names), id)), set())
            seen |= queues.get((topic, id), set())
            if len(names) > 1 or len(seen) > 1:
                self.irregular.add(topic)

    def shard(self, piece: dict[str, Any]) -> str:
        if piece["topic"] in self.irregular:
            return WHOLE_TOPIC
        if piece["queue"] is not None:
            return str(piece["queue"])
        return min(self.queues.get((piece["topic"], piece["name"])) or {UNKNOWN_QUEUE})


def check_in_shards(run: Path, options: CheckOptions) -> Report:
    files = files_of([find_files([run])])
    routes = Routes([row for batch in scan_messages(files, _all_of(files)) for row in batch.to_pylist()])
    pieces = [row for batch in scan_pieces(files, _all_of(files)) for row in batch.to_pylist()]
    for piece in pieces:
        piece["shard"] = routes.shard(piece)
    pieces.sort(key=lambda piece: (piece["topic"] or "", *(piece[name] for name in ("shard", "t", "file", "pos"))))
    topics = Topics(frozenset(routes.irregular), routes.first_sends)
    parts: list[tuple[Findings, list[FileFacts]]] = [(Findings(), [])]
    results = judging.judge(options, topics, iter([pa.RecordBatch.from_pylist(pieces)]))
    add_results(parts, ((row["run"], row["payload"]) for batch in results for row in batch.to_pylist()))
    return report_of(*parts[0], options)


def _all_of(files: Files) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([list(range(len(files)))], ["id"])


@pytest.mark.slow
@pytest.mark.parametrize("enough", [1, 20, judging.EVENTS_PER_SORT])
def test_findings_of_shards_add_up_to_the_plain_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    """However many events are sorted at once."""
    monkeypatch.setattr(judging, "EVENTS_PER_SORT", enough)
    for number in range(enough, enough + 60):
        run = write_history(tmp_path / str(number), garbage(number, regular=number % 2 == 0), lives=1 + number % 3)
        for options in (STRICT, DRAINED):
            assert check_in_shards(run, options) == replace(check([run], options), around=()), number


RECORDED_OR_NOT = UNDECIDED | {name: script for name, (_, script) in PLANTED.items() if "recorded member" in name}


def in_second_queue(script: str) -> str:
    """The same lines again, later and in another queue, with other messages and keys."""
    later = 10 * len(script.strip().splitlines())
    script = re.sub(r"asked=(\d+)", lambda found: f"asked={int(found[1]) + later}", script.strip())
    script = re.sub(r"\bm(\d)\b", r"n\1", re.sub(r"\b([jk])\b", r"\1\1", script))
    return "\n".join(f"{line} queue=1" for line in script.splitlines())


@pytest.mark.parametrize("name", RECORDED_OR_NOT)
def test_what_is_unknown_of_members_without_a_history_adds_up(tmp_path: Path, name: str) -> None:
    script = RECORDED_OR_NOT[name].strip()
    run = write_history(tmp_path / "run", parse(f"{script}\n{in_second_queue(script)}"))
    for options in (CheckOptions(), CheckOptions(foreign_members=True)):
        plain = check([run], options)
        assert check_in_shards(run, options) == replace(plain, around=())
        assert name not in UNDECIDED or max(each.undecided for each in plain.groups.values()) >= 2
