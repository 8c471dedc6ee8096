"""Recorded histories for the console's tests: one that is in order, and one that is not."""

import json
from collections.abc import Sequence
from pathlib import Path

MS = 1_000_000


def write_history(folder: Path, offsets: Sequence[int] = (0, 1, 2), *, key: str = "order-7") -> None:
    """A producer sends three messages of a key, and a worker runs them in the order of `offsets`."""
    folder.mkdir(parents=True, exist_ok=True)
    here = {"topic": "orders", "queue": 0, "key": key}
    sent = [
        event
        for number in range(3)
        for event in (
            {"e": "send", "topic": "orders", "key": key, "id": f"message-{number}"},
            {"e": "acked", **here, "id": f"message-{number}", "offset": number},
        )
    ]
    run = [
        event
        for number in offsets
        for event in (
            {"e": "turn", **here, "group": "shipping", "id": f"message-{number}", "offset": number, "attempt": 1},
            {"e": "turn_end", **here, "group": "shipping", "offset": number, "outcome": "ok"},
        )
    ]
    _write(folder / "shop.jsonl", {"e": "begin", "name": "shop", "role": "producer", "run": ""}, sent, at=0)
    _write(folder / "worker-1.jsonl", {"e": "begin", "name": "worker-1", "role": "consumer", "run": ""}, run, at=100)


def _write(path: Path, begin: dict[str, object], events: Sequence[dict[str, object]], *, at: int) -> None:
    lines = [{**each, "n": n, "t": (at + 10 * n) * MS} for n, each in enumerate([begin, *events])]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
