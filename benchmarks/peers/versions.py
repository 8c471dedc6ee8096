"""Which code a round measured, so that a figure never mixes rounds of two versions."""

import hashlib
import subprocess
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("src/lanemq", "benchmarks/peers/clients", "benchmarks/peers/paths", "benchmarks/peers/servers")
"""Folders that decide what a round measures. A change of a document or of the report keeps rounds comparable."""
Part = tuple[str, str]
"""A group of paths and a mode: what one part of a run measures."""


class MixedVersionsError(Exception):
    """Rounds of different versions of the code would count as one figure."""


@cache
def code_id() -> str:
    """A digest of the measured folders, with what is not committed; `unknown` outside a Git checkout."""
    trees = [_git("rev-parse", f"HEAD:{folder}") for folder in MEASURED]
    if not all(trees):
        return "unknown"
    changes = _git("diff", "HEAD", "--", *MEASURED)
    return hashlib.sha256("\n".join([*trees, changes]).encode()).hexdigest()[:12]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def kept(
    records: Iterable[dict[str, Any]], parts: Collection[Part], code: str, *, everyone: bool
) -> tuple[list[dict[str, Any]], int]:
    """The earlier rounds that stay when these parts are run with this code, and how many are dropped.

    Rounds of other parts stay: the results name the version of each. Rounds of the same part stay if the code is the
    same. Those of other code are replaced, which needs a run of everyone: a comparison has both sides in one run.
    """
    stay, dropped = [], 0
    for record in records:
        if (record.get("group", ""), record["mode"]) not in parts or record.get("code") == code:
            stay.append(record)
        else:
            dropped += 1
    if dropped and not everyone:
        raise MixedVersionsError(
            f"{dropped} rounds of these paths were measured with other code: run all contenders, or leave out --append"
        )
    return stay, dropped


def check_unmixed(records: Iterable[dict[str, Any]]) -> None:
    """Raises if a part has rounds of more than one version of the code."""
    codes: dict[Part, set[str]] = {}
    for record in records:
        codes.setdefault((record.get("group", ""), record["mode"]), set()).add(record.get("code", "unknown"))
    mixed = [f"{group}, {mode}" for (group, mode), some in codes.items() if len(some) > 1]
    if mixed:
        raise MixedVersionsError(f"rounds of different versions of the code are mixed: {'; '.join(sorted(mixed))}")


def versions(records: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Version to the groups of paths that were measured with it, in the order of measuring."""
    found: dict[str, list[str]] = {}
    for record in records:
        groups = found.setdefault(record.get("version", "unknown"), [])
        name = f"{record.get('group', '')}{' durable' if record['mode'] == 'durable' else ''}"
        if name not in groups:
            groups.append(name)
    return found
