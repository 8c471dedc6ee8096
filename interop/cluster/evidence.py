"""What the clients of a run wrote down, and what the brokers hold at the end: are all promises kept?"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lanemq.client.admin.topic_reader import TopicReader
from lanemq.history import NO_HISTORY, History

CLOCK_SLACK = 0.001
"""Seconds. Two processes read the same clock; reading it and running the handler are not one step."""

Note = dict[str, Any]


def notes_of(files: Iterable[Path]) -> Iterator[Note]:
    """The lines of all files with the name of their process; the last line of a killed process may be torn."""
    for file in files:
        for line in file.read_text().splitlines():
            try:
                note: Note = json.loads(line)
            except ValueError:
                continue
            note["who"] = file.stem
            yield note


@dataclass
class Verdict:
    """What is wrong with a run, and how much there was."""

    acked: int = 0
    stored: int = 0
    turns: int = 0
    repeats_stored: int = 0
    """Messages that are stored more than once: the answer to an attempt was lost."""
    late_repeats: list[str] = field(default_factory=list)
    """Repeats behind a newer message of their key."""
    failed: int = 0
    """Messages whose producer was told that they may not be stored."""
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    """Acknowledged and not stored."""
    moved: list[str] = field(default_factory=list)
    """Keys in more than one queue."""
    stored_out_of_order: list[str] = field(default_factory=list)
    processed_out_of_order: list[str] = field(default_factory=list)
    never_processed: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    ran_on: list[str] = field(default_factory=list)
    """Turns of members that were frozen in them, and ended them when they were woken: nobody can take these back."""

    @property
    def is_clean(self) -> bool:
        return not (
            self.lost
            or self.moved
            or self.stored_out_of_order
            or self.processed_out_of_order
            or self.never_processed
            or self.overlaps
        )

    def __str__(self) -> str:
        bad = {
            name: len(found)
            for name in (
                "lost",
                "moved",
                "stored_out_of_order",
                "processed_out_of_order",
                "never_processed",
                "overlaps",
            )
            if (found := getattr(self, name))
        }
        return (
            f"acked {self.acked}, stored {self.stored} (repeats {self.repeats_stored}, late {len(self.late_repeats)}), "
            f"turns {self.turns} ({len(self.ran_on)} of frozen members ran on), failed {self.failed}, "
            f"refused {self.refused}: {bad or 'clean'}"
        )


Stored = dict[str, list[tuple[str, int]]]
"""Key and number of every message, in order, by queue."""


def stored_messages(servers: str, topic: str, history: History = NO_HISTORY) -> Stored:
    """Every message in every queue. The history gets a line for each, so that the checker knows the log."""
    found: Stored = {}
    with TopicReader(servers, topic) as reader:
        for queue in reader.queues:
            line = found[f"{queue.broker}/{queue.queue_id}"] = []
            for each in reader.read(queue, *reader.bounds(queue)):
                body = json.loads(bytes(each.body))
                line.append((body["key"], body["n"]))
                place = (queue.queue_id, each.queue_offset)
                history.stored(topic, each.key or "", each.message_id, *place, broker=queue.broker)
    return found


Frozen = Mapping[str, Sequence[float]]
"""When each process was frozen, by its name."""


def judge(
    produced: Iterable[Path], consumed: Iterable[Path], stored: Stored, frozen: Frozen, *, all_processed: bool
) -> Verdict:
    """Compares what producers were told, what is stored, and what consumers did."""
    verdict = Verdict()
    acked: set[tuple[str, int]] = set()
    places: dict[str, set[str]] = defaultdict(set)
    for note in notes_of(produced):
        match note["e"]:
            case "acked":
                acked.add((note["key"], note["n"]))
                places[note["key"]].add(note["queue"])
            case "failed" | "frozen":
                verdict.failed += 1
            case "refused":
                verdict.refused += 1
    verdict.acked = len(acked)
    times = Counter(each for line in stored.values() for each in line)
    verdict.stored = times.total()
    verdict.repeats_stored = verdict.stored - len(times)
    verdict.lost = [f"{key}:{number}" for key, number in sorted(acked - times.keys())]
    for queue, line in stored.items():
        highest: dict[str, int] = {}
        for key, number in line:
            places[key].add(queue)
            if number > highest.get(key, -1):
                highest[key] = number
            elif times[key, number] > 1:
                if number < highest[key]:
                    verdict.late_repeats.append(f"{key}:{number} behind {highest[key]} in {queue}")
            else:
                verdict.stored_out_of_order.append(f"{key}:{number} behind {highest[key]} in {queue}")
    verdict.moved = sorted(key for key, queues in places.items() if len(queues) > 1)
    _judge_turns(list(notes_of(consumed)), times, frozen, verdict, all_processed=all_processed)
    return verdict


def _judge_turns(
    notes: list[Note], stored: Counter[tuple[str, int]], frozen: Frozen, verdict: Verdict, *, all_processed: bool
) -> None:
    notes.sort(key=lambda note: note["t"])
    exists: dict[str, list[int]] = defaultdict(list)
    for key, number in sorted(stored):
        exists[key].append(number)
    reached: Counter[str] = Counter()  # how many of the key's stored messages have begun, in order
    running: dict[str, tuple[str, float]] = {}
    for note in notes:
        key, who = note["key"], note["who"]
        if note["e"] == "end":
            if running.get(key, ("", 0.0))[0] == who:
                del running[key]
            continue
        verdict.turns += 1
        there = exists[key]
        at = reached[key]
        if at < len(there) and note["n"] == there[at]:
            reached[key] += 1
        elif note["n"] not in there[:at]:
            verdict.processed_out_of_order.append(
                f"{key}:{note['n']} at {note['t']:.3f} in {who}, {there[at : at + 1]} was next"
            )
        other = running.get(key)
        if other is not None and other[0] != who and _ended_later(notes, key, other, note["t"]):
            in_its_turn = any(other[1] <= at <= note["t"] for at in frozen.get(other[0], ()))
            found = verdict.ran_on if in_its_turn else verdict.overlaps
            found.append(f"{key}: {other[0]} and {who} at {note['t']:.3f}")
        running[key] = (who, note["t"])
    if all_processed:
        verdict.never_processed = [
            f"{key}:{number}" for key, there in exists.items() for number in there[reached[key] :]
        ]


def _ended_later(notes: list[Note], key: str, other: tuple[str, float], t: float) -> bool:
    """Whether the turn of the other member ended after this one began: a killed member's turn has no end."""
    who, began = other
    return any(
        note["e"] == "end" and note["key"] == key and note["who"] == who and note["t"] > t + CLOCK_SLACK
        for note in notes
        if began <= note["t"]
    )
