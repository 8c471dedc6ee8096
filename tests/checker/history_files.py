"""Writes the histories of the checker's tests to files, as processes would."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from lanemq.checker.events import HistoryEvent


def write_history(folder: Path, events: Iterable[HistoryEvent], *, lives: int = 1) -> Path:
    """Writes one file per process, numbered, in time order; `lives` is how often each process starts."""
    folder.mkdir(parents=True)
    files: dict[str, list[dict[str, Any]]] = {}
    ordered = sorted(events, key=lambda event: event.t)
    for number, event in enumerate(ordered):
        lines = files.setdefault(event.process.name, [])
        begins = sum(line["e"] == "begin" for line in lines)
        if begins <= number * lives // len(ordered):
            t = lines[-1]["t"] if lines else 0
            lines.append({"e": "begin", "n": 0, "t": t, "name": event.process.name, "role": event.process.role})
        facts = msgspec.to_builtins(event)
        del facts["process"]
        lines.append(facts | {"n": lines[-1]["n"] + 1})
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
