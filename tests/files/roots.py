"""`root`: an empty folder on each kind of store. Servers are real in extended tests; others have objects in memory."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.files.servers import BUCKET, mini_hdfs, s3_server

from lanemq.files import StorePath, locate
from lanemq.files.objects import ObjectPath

SERVER: Final = (pytest.mark.extended, pytest.mark.slow)
"""Both marks, because `-m "not slow"` alone should not start a server either."""
KINDS: Final = (
    "local",
    "objects",
    pytest.param("hdfs", marks=SERVER),
    pytest.param("s3", marks=SERVER),
)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mini_hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as variables:
        yield variables


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorePath:
    name = uuid.uuid4().hex
    if request.param == "local":
        return tmp_path
    if request.param == "objects":
        return ObjectPath("memory://", name)
    if request.param == "hdfs":
        return locate(f"{request.getfixturevalue('hdfs')}/{name}")
    for variable, value in request.getfixturevalue("s3").items():
        monkeypatch.setenv(variable, value)
    return locate(f"s3a://{BUCKET}/{name}")
