"""A database in every form that `once` takes, and cleaning that knows no table yet."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.effects import forms
from tests.effects.forms import Form

from lanemq.effects import transaction


@pytest.fixture(autouse=True)
def cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "CLEANING", type(transaction.CLEANING)())


@pytest.fixture
def form(request: pytest.FixtureRequest) -> Iterator[Form]:
    """The form that the test is parametrised with. SQLite's file is in memory, which needs no fsync."""
    name = request.param
    if name in {**forms.SQLITE, **forms.ASYNC_SQLITE}:
        memory = Path("/dev/shm")
        with (
            tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
            forms.sqlite_form(name, Path(folder) / "shop.db") as found,
        ):
            yield found
    else:
        with forms.postgres_form(name, request.getfixturevalue("postgres").dsn) as found:
            yield found
