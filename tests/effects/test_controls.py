"""Negative controls: what happens to effects when one guard of `once` is missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.mutants import applied_place, checked_status, effect_owner
from tests.effects.forms import Form, postgres_form, sqlite_form
from tests.effects.messages import delivered
from tests.postgres_server import Server


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Form]:
    with sqlite_form("sqlite3", tmp_path / "shop.db") as form:
        yield form


def test_without_the_comparison_of_places_a_repeat_has_a_second_effect(
    shop: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_place(monkeypatch.setattr)
    for value in ("first", "second"):
        shop.apply(delivered(5), value)
    assert shop.effects() == ["first", "second"]


def test_without_the_comparison_of_epochs_a_stale_owner_has_an_effect(
    shop: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    effect_owner(monkeypatch.setattr)
    shop.apply(delivered(5, "a", epoch=8), "owner")
    shop.apply(delivered(5, "b", epoch=7), "stale")
    assert shop.effects() == ["owner", "stale"]


def test_without_a_look_at_the_transaction_a_swallowed_error_loses_the_effect(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked_status(monkeypatch.setattr)
    with postgres_form("psycopg", postgres.dsn) as form:
        form.apply(delivered(5), "lost", swallows="SELECT does_not_exist")
        assert form.effects() == []
