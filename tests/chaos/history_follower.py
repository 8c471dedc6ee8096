"""Follows the histories of a long run: counts events, and keeps what is unfinished.

A run of hundreds of rounds writes millions of lines. Memory follows what is unfinished, as in the checker.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.roles import TOPIC

Place = tuple[int, int]
"""Queue and offset."""


class HistoryFollower:
    """Follows all history files of a folder. `read` reads what is new."""

    def __init__(self, folder: Path) -> None:
        self.acked: Counter[str] = Counter()
        """Acknowledged messages, by producer."""
        self.turns: Counter[str] = Counter()
        """Turns that began, by consumer."""
        self.finished: Counter[int] = Counter()
        """Turns that succeeded, by queue."""
        self.granted: Counter[tuple[str, int]] = Counter()
        """Leases granted, by member and queue."""
        self.unknown = 0
        """Sends that were given up."""
        self.undone: set[Place] = set()
        """Acknowledged, and not finished by the group."""
        self.news: dict[Place, str] = {}
        """Ids of acknowledged messages that were not looked up in the log yet."""
        self.faults: list[dict[str, Any]] = []
        self._early: set[Place] = set()
        """Finished before the acknowledgement was read, or never acknowledged."""
        self._late: dict[int, set[int]] = {}
        """Turns that ended after the lease, by queue: finished only if a commit passes them."""
        self._owner: dict[int, tuple[int, str]] = {}
        self._folder = folder
        self._at: dict[Path, int] = {}
        self._take = {
            "acked": self._acked,
            "send_unknown": self._unknown,
            "turn": self._turn,
            "turn_end": self._turn_end,
            "committed": self._committed,
            "lease_granted": self._granted,
            "fault": self._fault,
        }

    def read(self) -> "HistoryFollower":
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._at.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._at[path] = self._at.get(path, 0) + len(whole)
            for line in whole.splitlines():
                event = json.loads(line)
                if (take := self._take.get(event["e"])) is not None:
                    take(path.stem, event)
        return self

    @property
    def owners(self) -> dict[int, str]:
        """The last owner of each queue."""
        return {queue: member for queue, (_, member) in self._owner.items()}

    def _acked(self, by: str, event: dict[str, Any]) -> None:
        self.acked[by] += 1
        if event["offset"] < 0:
            return  # a repeat whose offset the broker has lost in a crash; the checker follows it by its id
        place = event["queue"], event["offset"]
        self.news[place] = event["id"]
        if place in self._early:
            self._early.discard(place)
        else:
            self.undone.add(place)

    def _unknown(self, by: str, event: dict[str, Any]) -> None:
        self.unknown += 1

    def _turn(self, by: str, event: dict[str, Any]) -> None:
        self.turns[by] += 1

    def _turn_end(self, by: str, event: dict[str, Any]) -> None:
        if event["outcome"] == "ok":
            self._done(event["queue"], event["offset"])
        elif event["outcome"] == "late":
            self._late.setdefault(event["queue"], set()).add(event["offset"])

    def _committed(self, by: str, event: dict[str, Any]) -> None:
        late = self._late.get(event["queue"])
        if late and event["topic"] == TOPIC:
            for offset in sorted(each for each in late if each < event["offset"]):
                late.discard(offset)
                self._done(event["queue"], offset)

    def _done(self, queue: int, offset: int) -> None:
        place = queue, offset
        self.finished[queue] += 1
        if place in self.undone:
            self.undone.discard(place)
        else:
            self._early.add(place)

    def _granted(self, by: str, event: dict[str, Any]) -> None:
        if event["topic"] == TOPIC and by == event["member"]:
            self.granted[by, event["queue"]] += 1
            before = self._owner.get(event["queue"], (0, ""))
            self._owner[event["queue"]] = max(before, (event["t"], by))

    def _fault(self, by: str, event: dict[str, Any]) -> None:
        self.faults.append(event)
