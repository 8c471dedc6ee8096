"""`pytest interop --backend apache --client java5`: one broker, one client, every case."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.backends import BACKENDS
from interop.clients import Client
from interop.java_client import java_client
from interop.lane_client import lane_client
from interop.maven import UnavailableError
from interop.programs import PROGRAMS
from interop.side_by_side import SideBySide
from interop.stage import GUEST, HOST, Stage

CLIENTS: dict[str, Callable[[str, Path], Client]] = {
    "lane": lambda address, folder: lane_client("lane", address, folder),
    "java49": lambda address, folder: java_client("java49", "4.9", address, folder),
    "java5": lambda address, folder: java_client("java5", "5", address, folder),
}

GUEST_CLIENT = "lane"

SIDE_BY_SIDE = pytest.StashKey[SideBySide]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", choices=sorted(BACKENDS), default="apache", help="the broker under test")
    choices = sorted({*CLIENTS, *PROGRAMS})
    parser.addoption("--client", choices=choices, default="java5", help="the client under test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes cases with a LaneMQ guest if the client is LaneMQ's own: they would test nothing new."""
    if config.getoption("--client") == GUEST_CLIENT:
        mixed = [item for item in items if item.get_closest_marker("guest") is not None]
        config.hook.pytest_deselected(items=mixed)
        items[:] = [item for item in items if item not in mixed]


@pytest.fixture(scope="session")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with BACKENDS[request.config.getoption("--backend")].run(tmp_path_factory.mktemp("broker")) as address:
            yield address
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def clients(
    request: pytest.FixtureRequest, address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Client]]:
    wanted = {HOST: request.config.getoption("--client")}
    if any(item.get_closest_marker("guest") is not None for item in request.session.items):
        wanted[GUEST] = GUEST_CLIENT
    with contextlib.ExitStack() as ending:
        try:
            clients = {kind: CLIENTS[name](address, tmp_path_factory.mktemp(kind)) for kind, name in wanted.items()}
        except UnavailableError as reason:
            pytest.skip(str(reason))
        for client in clients.values():
            ending.callback(client.close)
        yield clients


@pytest.fixture(scope="session")
def side_by_side(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Iterator[SideBySide]:
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    cases = [item for item in functions if "stage" in item.fixturenames]
    backend = request.config.getoption("--backend")
    running = SideBySide(cases, lambda case: Stage(_legal(case), backend, clients))
    request.config.stash[SIDE_BY_SIDE] = running
    yield running
    running.close()


def _legal(case: str) -> str:
    """The text as part of a topic or group name."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", case)[:60]


@pytest.fixture
def stage(side_by_side: SideBySide) -> None:
    """The stage of a case that `SideBySide` has already started."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "stage" not in pyfuncitem.fixturenames:
        return None
    pyfuncitem.config.stash[SIDE_BY_SIDE].result(pyfuncitem)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints how long each case took; pytest's durations only say how long it waited."""
    if (running := config.stash.get(SIDE_BY_SIDE, None)) is not None:
        for seconds, case in running.slowest(5):
            terminalreporter.write_line(f"{seconds:6.1f} s  {case}")
