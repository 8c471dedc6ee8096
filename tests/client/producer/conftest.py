"""Runs a test with both producers."""

import pytest
from tests.client.producer.producers import Blocking, OnALoop, Open


@pytest.fixture(params=[Blocking, OnALoop])
def kind(request: pytest.FixtureRequest) -> Open:
    return request.param  # type: ignore[no-any-return]
