"""The recipe for FastAPI in docs/guides/async.md works: a request sends, and the handler on the same loop gets it."""

from typing import Any

import pytest
from tests.client.consumer.with_broker import wait_for
from tests.documents import ROOT, snippets

from lanemq import Admin
from lanemq.testing.embedded import EmbeddedBroker


@pytest.mark.lanemq(own_broker=True)
def test_a_request_sends_and_the_handler_runs(
    lanemq_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    (recipe,) = [
        each
        for each in snippets("python")
        if each.document == ROOT / "docs" / "guides" / "async.md" and "FastAPI" in each.code
    ]
    with Admin(lanemq_broker.address) as admin:
        admin.create_topic("orders", ordered=True)
    names: dict[str, Any] = {}
    exec(compile(recipe.code.replace("localhost:9876", lanemq_broker.address), recipe.name, "exec"), names)
    with testclient.TestClient(names["api"]) as client:
        assert client.post("/orders/42/paid").json() == {"offset": 0}
        printed = ""

        def has_run() -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            return "order 42 is paid" in printed

        wait_for(has_run)
        assert client.post("/orders/42/packed").json() == {"offset": 1}
