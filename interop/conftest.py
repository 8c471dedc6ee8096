"""`pytest interop --backend apache --client java5`: one broker, one client, every case."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.backends import BACKENDS
from interop.clients import Client
from interop.java_client import java_client
from interop.lane_client import lane_client
from interop.maven import UnavailableError
from interop.side_by_side import SideBySide
from interop.stage import Stage

CLIENTS: dict[str, Callable[[str, Path], Client]] = {
    "lane": lambda address, folder: lane_client("lane", address, folder),
    "java49": lambda address, folder: java_client("java49", "4.9", address, folder),
    "java5": lambda address, folder: java_client("java5", "5", address, folder),
}

_SIDE_BY_SIDE = pytest.StashKey[SideBySide]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", choices=sorted(BACKENDS), default="apache", help="the broker under test")
    parser.addoption("--client", choices=sorted(CLIENTS), default="java5", help="the client under test")


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    backend = BACKENDS[request.config.getoption("--backend")]
    try:
        with backend.run(tmp_path_factory.mktemp("broker")) as address:
            client = CLIENTS[request.config.getoption("--client")](address, tmp_path_factory.mktemp("client"))
            try:
                yield client
            finally:
                client.close()
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def side_by_side(request: pytest.FixtureRequest, client: Client) -> Iterator[SideBySide]:
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    cases = [item for item in functions if "stage" in item.fixturenames]
    running = SideBySide(cases, lambda case: Stage(re.sub(r"[^a-zA-Z0-9_-]", "_", case)[:60], client))
    request.config.stash[_SIDE_BY_SIDE] = running
    yield running
    running.close()


@pytest.fixture
def stage(side_by_side: SideBySide) -> None:
    """Cases get their stage from `SideBySide`, which has started them before pytest comes to them."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "stage" not in pyfuncitem.fixturenames:
        return None
    pyfuncitem.config.stash[_SIDE_BY_SIDE].result(pyfuncitem)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Pytest's own durations say how long it waited for a case, not how long the case took."""
    if (running := config.stash.get(_SIDE_BY_SIDE, None)) is not None:
        for seconds, case in running.slowest(5):
            terminalreporter.write_line(f"{seconds:6.1f} s  {case}")
