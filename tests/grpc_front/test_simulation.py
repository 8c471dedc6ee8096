"""Fronts and clients that misbehave, on virtual time; and that the simulation notices when a guard is missing."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("grpc")

from tests.grpc_front import simulation

from lanemq.core.fronting import hand_outs, liveness
from lanemq.grpc_front import clients, handing, service

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("LANEMQ_FRONT_SEEDS", "12"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(seed: int) -> None:
    assert simulation.played(seed).problems == []


Guard = tuple[tuple[ModuleType, str, str], ...]
"""Lines of modules, and what is there in their place."""

GUARDS: dict[str, Guard] = {
    "a handle is one of a run that is here": (
        (
            hand_outs,
            "        for handle in hand_out.handles:\n            self._by_handle.pop(handle, None)\n        of_client",
            "        of_client",
        ),
        (hand_outs, "run.permit.dropped or not run.running or now >= hand_out.until", "False"),
        (hand_outs, "if now >= run.usable_until:", "if False:"),
        (handing, "elif self._finish(hand_out, DONE) is Why.QUEUE_GONE:", "elif self._finish(hand_out, DONE) is None:"),
    ),
    "nothing is confirmed after the keep-alive deadline": ((hand_outs, "if now >= run.usable_until:", "if False:"),),
    "time ends a run": ((hand_outs, "if now >= each.until or ", "if "),),
    "one message of a lane with a push consumer": (
        (handing, "messages if call.invisible is not None else 1", "messages"),
    ),
    "what a client that is gone has is for others": ((handing, "if client not in present:", "if False:"),),
    "what a client that ends has is for others": (
        (handing, "        for each in self.hand_outs.of_client(client):\n            self._return(each)\n", ""),
    ),
    "a lost connection is noticed": ((liveness, "known.lost_at = None if known.calls else now", "pass"),),
    "an answer that was not written returns": (
        (handing, "if each.number in self._members and each.answer is call:", "if False:"),
    ),
    "what a lost connection brought last returns": (
        (handing, "for each in self.hand_outs.uncertain(client, connection, since):", "for each in ():"),
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_the_simulation_notices_that_a_guard_is_missing(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {module: Path(str(module.__file__)).read_text() for module, _, _ in GUARDS[guard]}
    for module, line, without in GUARDS[guard]:
        assert sources[module].count(line) == 1, "the guard is written in another way now"
        sources[module] = sources[module].replace(line, without)
    for module, source in sources.items():
        mutant = ModuleType(module.__name__)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module.__name__, mutant)
            exec(compile(source, "mutant", "exec"), vars(mutant))
        _install(module, mutant, monkeypatch)
    assert any(simulation.played(seed).problems for seed in range(40)), "40 seeds have noticed nothing"


def _install(module: ModuleType, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if module is hand_outs:
        monkeypatch.setattr(mutant, "Ruling", hand_outs.Ruling)
        monkeypatch.setattr(handing, "HandOuts", mutant.HandOuts)
    elif module is handing:
        monkeypatch.setattr(mutant, "HandOuts", handing.HandOuts)  # perhaps one with a guard less
        monkeypatch.setattr(service, "Handing", mutant.Handing)
    else:
        monkeypatch.setattr(clients, "Clients", mutant.Clients)
