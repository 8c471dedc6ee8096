"""`pytest interop/languages --backend lane --client go`: one broker, one client, every case."""

import re
from collections.abc import Iterator

import pytest

from interop.conftest import SIDE_BY_SIDE
from interop.languages.bench import Bench
from interop.maven import UnavailableError
from interop.programs import PROGRAMS
from interop.side_by_side import SideBySide


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.config.getoption("--client")
    try:
        PROGRAMS[name].build()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    return name


@pytest.fixture(scope="session")
def side_by_side(
    request: pytest.FixtureRequest, address: str, client: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    cases = [item for item in request.session.items if isinstance(item, pytest.Function)]
    folder = tmp_path_factory.mktemp("programs")

    def bench(case: str) -> Bench:
        return Bench(re.sub("[^a-z0-9_]", "_", case)[:60], address, client, folder)

    running = SideBySide(cases, bench, PROGRAMS[client].at_once)
    request.config.stash[SIDE_BY_SIDE] = running
    yield running
    running.close()
