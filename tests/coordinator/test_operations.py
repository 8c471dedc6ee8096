"""A coordinator in production: monitor, users, TLS, its folder saved and examined, and starts that must be refused."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.broker.raw_client import RawClient
from tests.certificates import Authority
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, Start, owned, until

from lanemq import App, Message, Producer
from lanemq.broker.config import BrokerOptions
from lanemq.cli.main import main
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.client.coordination import COORDINATOR_NAMESPACE, EVERY_GROUP, CoordinatorEntry, Leader
from lanemq.coordinator.entries import OtherCoordinator
from lanemq.errors import NotAllowed
from lanemq.model.errors import StorageError, UsageError
from lanemq.net.address import Address
from lanemq.net.security import TlsOptions
from lanemq.net.serving.server_tls import ServerTls
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode
from lanemq.wire.signing import Credentials

MONITOR = Address("127.0.0.1", 0)
SECRET = "long-enough-secret"
USERS = f"""
[[user]]
access_key = "root"
secret_key = "{SECRET}"
admin = true

[[user]]
access_key = "billing"
secret_key = "{SECRET}"
topics = {{ {TOPIC} = "SUB" }}
groups = {{ {GROUP} = "SUB" }}
"""


def fetched(running: RunningCoordinator, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{running.coordinator.monitor_address}{path}") as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def move(cluster: EmbeddedBroker, **more: Any) -> None:
    with CoordinatedAdmin(cluster.address, **more) as admin:
        assert admin.move(GROUP, apply=True).moved


def test_the_monitor_says_live_and_ready_and_has_figures(cluster: EmbeddedBroker, start: Start) -> None:
    running = start(monitor=MONITOR)
    move(cluster)
    with RawClient(str(running.address)) as client:
        assert owned(client, "one")
        text = fetched(running, "/metrics")[1]
    assert f'lanemq_group_members{{group="{GROUP}"}} 1.0' in text
    assert 'lanemq_lease_changes_total{change="granted"} 1.0' in text
    assert "lanemq_ready 1.0" in text
    assert fetched(running, "/live")[0] == 200
    assert fetched(running, "/ready")[0] == 200


def test_a_coordinator_that_cannot_reach_its_cluster_is_not_ready(
    cluster: EmbeddedBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(monitor=MONITOR)
    monkeypatch.setattr("lanemq.coordinator.watch.MAX_SILENCE_MS", 300)
    cluster.stop()
    until(lambda: fetched(running, "/ready")[0] == 503)
    assert "no name server has answered for" in json.loads(fetched(running, "/ready")[1])["reasons"][0]
    assert fetched(running, "/live")[0] == 200
    cluster.start()
    until(lambda: fetched(running, "/ready")[0] == 200)


def test_users_need_rights_and_members_sign(cluster: EmbeddedBroker, start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS)
    running = start(users=users)
    billing, root = Credentials("billing", SECRET), Credentials("root", SECRET)
    with RawClient(str(running.address)) as client, pytest.raises(AssertionError):
        assert owned(client, "nobody", seconds=0.5)
    with pytest.raises(NotAllowed):
        move(cluster)
    with pytest.raises(NotAllowed, match="only administrators may"):
        move(cluster, credentials=billing)
    move(cluster, credentials=root)
    seen: list[Message] = []
    app = App(cluster.address, group=GROUP, credentials=billing)

    @app.ordered(TOPIC)
    def handle(message: Message) -> None:
        seen.append(message)

    with app, Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 1}, key="k")
        until(lambda: len(seen) == 1)
    assert seen[0].epoch > 0


def test_connections_are_encrypted(
    cluster: EmbeddedBroker, start: Start, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers of this cluster take plain connections; each side of a client's connection has its own TLS."""
    identity = authority.issue("127.0.0.1")
    running = start(tls=ServerTls(identity.cert, identity.key))
    with pytest.raises(Exception, match="closed the connection"), RawClient(str(running.address)) as client:
        client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    with Admin(str(running.address), tls=TlsOptions(authority.ca)) as admin:
        reply = admin._calls.ask(running.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert b"subscriptionGroupTable" in reply.body


# the folder


def cli(*words: str) -> Any:
    return CliRunner().invoke(main, [*words])


def test_a_folder_is_backed_up_while_it_runs_restored_and_examined(
    cluster: EmbeddedBroker, start: Start, tmp_path: Path
) -> None:
    running = start()
    move(cluster)
    with RawClient(str(running.address)) as client:
        before = owned(client, "one")
    saved, restored = tmp_path / "saved", tmp_path / "restored"
    assert cli("backup", str(saved), "--data", str(running.options.data)).exit_code == 0
    examined = cli("doctor", "--data", str(running.options.data))
    assert (examined.exit_code, "runs as process" in examined.output) == (0, True), examined.output
    running.stop()
    done = cli("restore", str(saved), "--data", str(restored))
    assert "lanemq coordinator --cluster NAME_SERVERS" in done.output
    again = start("restored")
    with RawClient(str(again.address)) as client:
        assert owned(client, "two") > before
    again.stop()
    assert "was stopped" in cli("doctor", "--data", str(restored)).output


def test_a_broker_refuses_the_folder_of_a_coordinator(cluster: EmbeddedBroker, start: Start) -> None:
    running = start()
    running.stop()
    with pytest.raises(StorageError, match="is the data folder of a coordinator"):
        EmbeddedBroker(BrokerOptions(running.options.data, listen=MONITOR)).start()


def test_a_copy_of_the_folder_does_not_start_beside_the_original(
    cluster: EmbeddedBroker, start: Start, tmp_path: Path
) -> None:
    """Both have the same id, so the name servers cannot tell them apart."""
    running = start()
    assert cli("backup", str(tmp_path / "saved"), "--data", str(running.options.data)).exit_code == 0
    assert cli("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "copy")).exit_code == 0
    with pytest.raises(UsageError, match=f"runs at {running.address} already, with another data folder"):
        start("copy")
    running.stop()
    start("copy")


def test_a_new_folder_continues_above_the_epochs_of_the_lost_one_whatever_the_clock_says(
    cluster: EmbeddedBroker, start: Start, at_broker: RawClient
) -> None:
    """`once` refuses owners with a lower epoch than one that it has seen."""
    start("lost").stop()
    granted = 10**13
    entry = {"namespace": COORDINATOR_NAMESPACE, "key": EVERY_GROUP}
    lost = CoordinatorEntry("lost", Leader(Address("127.0.0.1", 1), 1), granted)
    at_broker.ask(RequestCode.PUT_KV_CONFIG, {**entry, "value": str(lost)})
    running = start("new", replace=True)
    move(cluster)
    with RawClient(str(running.address)) as client:
        assert owned(client, "one") > granted


def copy_of(running: RunningCoordinator) -> str:
    """A copy of its folder, as `cp -r` makes one."""
    shutil.copytree(running.options.data, running.options.data.with_name("copy"))
    return "copy"


def test_a_copied_folder_continues_above_the_epochs_that_were_granted_since(
    cluster: EmbeddedBroker, start: Start
) -> None:
    first = start()
    move(cluster)
    folder = copy_of(first)
    with RawClient(str(first.address)) as client:
        granted = owned(client, "one")
    first.stop()
    with RawClient(str(start(folder).address)) as client:
        assert owned(client, "two") > granted


def frozen_beside_its_copy(cluster: EmbeddedBroker, start: Start) -> tuple[RunningCoordinator, bool]:
    """A coordinator that was frozen while a copy of its folder started, and whether it answered what waited for it."""
    frozen = start()
    move(cluster)
    with RawClient(str(frozen.address)) as client:
        assert owned(client, "one")
        folder = copy_of(frozen)
        frozen.loop.call_soon_threadsafe(time.sleep, 5.0)
        waits = client.post(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        start(folder)
        client.socket.settimeout(4.0)  # an answer comes with the end of the freeze
        try:
            client.answer(waits)
        except EOFError:
            return frozen, False
        return frozen, True


def test_a_frozen_coordinator_answers_nothing_once_a_copy_of_its_folder_has_its_place(
    cluster: EmbeddedBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    frozen, answered = frozen_beside_its_copy(cluster, start)
    assert f"the coordinator at {frozen.address} may be frozen" in caplog.text
    assert not answered
    with pytest.raises(OtherCoordinator, match=r"a copy of its folder was started at 127\.0\.0\.1:"):
        asyncio.run_coroutine_threadsafe(frozen.coordinator.watched(asyncio.Event()), frozen.loop).result(10)


def test_a_copy_that_is_started_again_while_new_owners_wait_makes_them_wait_again(
    cluster: EmbeddedBroker, start: Start
) -> None:
    frozen = start()
    move(cluster)
    folder = copy_of(frozen)
    frozen.loop.call_soon_threadsafe(time.sleep, 5.0)
    start(folder).stop()
    again = start(folder).coordinator
    assert again.running.queues.grants_from > again._clock.now() + 10_000


def test_if_its_term_did_not_run_out_it_would_answer(
    cluster: EmbeddedBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr("lanemq.core.brokering.cluster.leadership.Term.answers", lambda *_, **__: True)
    assert frozen_beside_its_copy(cluster, start)[1]


def test_a_coordinator_that_was_frozen_continues_if_it_still_has_its_place(
    cluster: EmbeddedBroker, start: Start
) -> None:
    frozen = start()
    move(cluster)
    with RawClient(str(frozen.address)) as client:
        frozen.loop.call_soon_threadsafe(time.sleep, 3.0)
        assert client.is_closed_by_broker()
    with RawClient(str(frozen.address)) as client:
        assert owned(client, "one")


# bad input


def test_a_cluster_that_cannot_be_reached_is_named_in_one_line(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("lanemq")), "coordinator", "--cluster", "127.0.0.1:1"]
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "data"), "--monitor", "off", "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "the cluster cannot be reached: no name server answered (tried 127.0.0.1:1)" in last
    assert "or correct --cluster" in last
