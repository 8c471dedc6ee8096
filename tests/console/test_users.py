"""Signing in as a user of the broker: the broker says who it is, and what this user may change."""

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import BASE, TOKEN
from tests.guarded_broker import SECRET, users_file

from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.watching import WatchAdmin
from lanemq.console.app import console_app
from lanemq.console.settings import ConsoleSettings
from lanemq.model.errors import NotAllowed
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.signing import Credentials

OURS = {"origin": BASE}
CLERK = '\n[[user]]\naccess_key = "clerk"\nsecret_key = "clerk-secret"\ntopics = { orders = "PUB|SUB" }\n'


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A console of a broker with an administrator, `root`, and a user who may send to one topic, `clerk`."""
    folder = tmp_path_factory.mktemp("users")
    users = users_file(folder)
    users.write_text(users.read_text() + CLERK)
    options = BrokerOptions(folder / "data", listen=Address("127.0.0.1", 0), users=users)
    with pytest.MonkeyPatch.context() as patch, EmbeddedBroker(options) as broker:
        patch.setenv("LANEMQ_ACCESS_KEY", "root")
        patch.setenv("LANEMQ_SECRET_KEY", SECRET)
        app = console_app(ConsoleSettings(broker.address, every=0.2), TOKEN)
        with TestClient(app, base_url=BASE, client=("127.0.0.1", 50000)) as found:
            yield found


@pytest.fixture(autouse=True)
def _signed_out(client: TestClient) -> Iterator[None]:
    yield
    client.cookies.clear()


def sign_in(client: TestClient, user: str, secret: str) -> int:
    form = {"user": user, "token": secret}
    return client.post("/sign-in", data=form, headers=OURS, follow_redirects=False).status_code


def create(client: TestClient, name: str) -> tuple[int, str]:
    page = client.get(f"/topic/new?name={name}&queues=1&order=key").text
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    answer = client.post("/topic/new", data=form, headers=OURS)
    return answer.status_code, answer.text


def topics(client: TestClient) -> list[str]:
    with Admin(client.app.state.console.settings.server, credentials=Credentials("root", SECRET)) as admin:
        return admin.topics()


@pytest.mark.parametrize(("user", "secret"), [("root", "wrong-secret"), ("nobody", SECRET), ("root", " ")])
def test_a_user_whom_the_broker_does_not_accept_is_not_signed_in(client: TestClient, user: str, secret: str) -> None:
    assert sign_in(client, user, secret) == 403
    assert client.cookies.get("lanemq_console") is None


def test_an_administrator_of_the_broker_may_change_something(client: TestClient) -> None:
    assert sign_in(client, "root", SECRET) == 303
    status, text = create(client, "made-by-root")
    assert (status, "Topic made-by-root was created." in text) == (200, True)
    assert "made-by-root" in topics(client)


def test_a_user_may_change_only_what_the_broker_allows_although_the_console_may_do_more(client: TestClient) -> None:
    assert sign_in(client, "clerk", "clerk-secret") == 303
    status, text = create(client, "made-by-clerk")
    assert status == 403
    assert "clerk" in text
    assert "made-by-clerk" not in topics(client)


def test_control_with_the_credentials_of_the_console_it_would_be_made(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.console.screens.Console.credentials", lambda *_: {})
    assert sign_in(client, "clerk", "clerk-secret") == 303
    assert create(client, "made-without-guard")[0] == 200
    assert "made-without-guard" in topics(client)


def test_users_and_rights_are_shown_without_secrets_to_those_who_have_signed_in(client: TestClient) -> None:
    before = client.get("/settings").text
    assert "Sign in to see the users of the brokers" in before
    assert "clerk" not in before
    assert sign_in(client, "root", SECRET) == 303
    page = client.get("/settings").text
    rows = {row[0]: row[1] for row in re.findall(r'<tr><th scope="row">(clerk|root)(.*?)</tr>', page, re.DOTALL)}
    assert "<code>orders</code> PUB|SUB" in rows["clerk"]
    assert "others DENY" in rows["clerk"]
    assert ("admin" in rows["root"], "everything" in rows["root"]) == (True, True)
    assert SECRET not in page
    assert "clerk-secret" not in page


def test_only_an_administrator_may_ask_a_broker_for_its_users(client: TestClient) -> None:
    server = client.app.state.console.settings.server
    with WatchAdmin(server, credentials=Credentials("clerk", "clerk-secret")) as admin, pytest.raises(NotAllowed):
        admin.broker_users()
    with WatchAdmin(server, credentials=Credentials("root", SECRET)) as admin:
        ((broker, users),) = [(each.broker, each.users) for each in admin.broker_users()]
    assert broker == "lanemq"
    assert users is not None
    assert [(user.access_key, user.admin) for user in users if user.access_key in ("root", "clerk")] == [
        ("root", True), ("clerk", False)
    ]  # fmt: skip
