"""What an operator requests for held and parked lanes, whether or not the pipeline runs.

A request is a file below `requests/` in the stage's folder; it needs no Spark and no broker. The next retry pass takes
it; a pipeline that is down takes it when it starts.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from lanemq.clock import SystemClock
from lanemq.model.errors import InvalidOption
from lanemq.pipelines.atomic_files import read_json, write_json

Action: TypeAlias = Literal["redrive", "discard", "discard_first"]


class OperatorRequest(msgspec.Struct, frozen=True):
    """A request about one lane, or about all that are held or parked (`lane` None)."""

    id: str
    action: Action
    lane: str | None
    asked: int
    """Wall time, milliseconds."""


def request_redrive(stage_folder: Path, key: str | None = None, *, everything: bool = False) -> str:
    """Requests that the key's messages are tried again in order, before newer ones. Returns the request's id."""
    return _request(stage_folder, "redrive", key, everything=everything)


def request_discard(
    stage_folder: Path, key: str | None = None, *, everything: bool = False, first_only: bool = False
) -> str:
    """Requests that the key's waiting messages become dead letters, so that the key continues.

    `first_only`: only the one that failed. Returns the request's id.
    """
    return _request(stage_folder, "discard_first" if first_only else "discard", key, everything=everything)


def _request(stage_folder: Path, action: Action, key: str | None, *, everything: bool) -> str:
    if (key is None) != everything:
        raise InvalidOption(f"{action}: name one key, or give everything=True, and not both")
    if not stage_folder.is_dir():
        raise InvalidOption(f"{stage_folder} is not a stage's folder: check the path of the checkpoint")
    asked = SystemClock().wall()
    request = OperatorRequest(f"{asked}-{os.urandom(4).hex()}", action, key, asked)
    write_json(_path(stage_folder, request), request)
    return request.id


def pending_requests(stage_folder: Path) -> list[OperatorRequest]:
    """Requests that no retry pass has taken yet."""
    folder = stage_folder / "requests"
    found: Any = [read_json(path, OperatorRequest) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    return list(found)


def remove_request(stage_folder: Path, request: OperatorRequest) -> None:
    """Removes a request that a retry pass has carried out."""
    _path(stage_folder, request).unlink(missing_ok=True)


def _path(stage_folder: Path, request: OperatorRequest) -> Path:
    return stage_folder / "requests" / f"{request.id}.json"


@dataclass(frozen=True, slots=True)
class RequestedActions:
    """What one retry pass does with held and parked lanes."""

    named: Mapping[str, Action]
    everything: Action | None = None
    """For the lanes that are not named."""

    @classmethod
    def of(cls, requests: Iterable[OperatorRequest]) -> "RequestedActions":
        """Of two requests for a lane, the later one counts."""
        asked = sorted(requests, key=lambda request: (request.asked, request.id))
        everything = [request.action for request in asked if request.lane is None]
        named = {request.lane: request.action for request in asked if request.lane is not None}
        return cls(named, everything[-1] if everything else None)

    def for_lane(self, name: str) -> Action | None:
        """What to do with a lane; None if nothing was requested."""
        return self.named.get(name, self.everything)


NO_ACTIONS = RequestedActions({})
