"""Two coordinators that share a PostgreSQL: one answers, the other takes over, and nothing is granted twice."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from tests import postgres_server
from tests.broker.raw_client import BROKER, RawClient
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, Start, owned, until

from lanemq import App, Message, Producer
from lanemq.cli.main import main
from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.coordinator.entries import KnownEntries
from lanemq.coordinator.postgres_rows import PostgresRows
from lanemq.coordinator.term_gate import TermGate
from lanemq.coordinator.watch import NEW_OWNERS_WAIT
from lanemq.core.brokering.cluster.leadership import Term
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

Contend = Callable[[], RunningCoordinator]


@pytest.fixture
def url(postgres: postgres_server.Server) -> str:
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS lanemq CASCADE")
    return postgres.dsn


@pytest.fixture
def contend(cluster: EmbeddedBroker, url: str) -> Iterator[Contend]:
    """Starts coordinators that share the database."""
    started: list[RunningCoordinator] = []

    def begin() -> RunningCoordinator:
        started.append(RunningCoordinator(cluster.address, None, state=url))
        return started[-1]

    yield begin
    for each in reversed(started):
        each.stop()


@pytest.fixture
def leader(contend: Contend, cluster: EmbeddedBroker) -> RunningCoordinator:
    """A coordinator that leads and has the group."""
    running = contend()
    until(lambda: running.coordinator.leads)
    with CoordinatedAdmin(cluster.address) as admin:
        assert admin.move(GROUP, apply=True).moved
    return running


def asked(running: RunningCoordinator) -> int:
    """What a coordinator answers to any request: its code; -1 if it answers nothing."""
    try:
        with RawClient(str(running.address)) as client:
            client.socket.settimeout(2)
            return client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).code
    except (OSError, EOFError, AssertionError):
        return -1


def test_of_two_one_leads_and_the_other_says_who(contend: Contend, leader: RunningCoordinator) -> None:
    other = contend()
    assert asked(leader) == 0
    with RawClient(str(other.address)) as client:
        refused = client.ask(RequestCode.LOCK_BATCH_MQ)
    assert refused.code == ResponseCode.NOT_LEADER
    assert refused.ext["laneLeader"] == str(leader.address)
    assert int(refused.ext["laneTerm"]) == leader.coordinator.running.context.term


def test_a_leader_that_stops_hands_over_and_owners_keep_their_epochs(
    contend: Contend, leader: RunningCoordinator
) -> None:
    other = contend()
    with RawClient(str(leader.address)) as client:
        epoch = owned(client, "one")
    leader.stop()
    until(lambda: other.coordinator.leads, 2)
    with RawClient(str(other.address)) as client:
        assert not client.lane_lock("two", TOPIC, group=GROUP).lane_leases, "it is the former owner's"
        assert owned(client, "one") == epoch


def test_a_new_owner_at_a_new_leader_gets_an_epoch_above_all_of_the_former_one(
    contend: Contend, leader: RunningCoordinator
) -> None:
    other = contend()
    limit = leader.coordinator.running.watch._limit._entered
    leader.stop()
    until(lambda: other.coordinator.leads)
    with RawClient(str(other.address)) as client:
        assert owned(client, "one") > limit


# answers only in its term


@contextlib.contextmanager
def locked_row(url: str) -> Iterator[None]:
    """Nobody can renew a term, or claim one."""
    with psycopg.connect(url) as db:
        db.execute("SELECT * FROM lanemq.leader FOR UPDATE")
        yield


def answers_without_a_term(running: RunningCoordinator, url: str) -> bool:
    """Whether a leader still answers as one after its state has confirmed nothing for longer than a term."""
    with RawClient(str(running.address)) as client, locked_row(url):
        term = running.coordinator.running.context.term
        clock = running.coordinator._clock
        begin = clock.now()
        until(lambda: clock.now() > begin + 3_000)
        client.socket.settimeout(2)
        try:
            reply = client.keep_alive("one", 0, GROUP)
        except (OSError, EOFError, AssertionError):
            return False
        return reply.code == 0 and reply.ext.get("laneTerm") == str(term)


def test_a_leader_whose_term_has_run_out_answers_nothing(leader: RunningCoordinator, url: str) -> None:
    assert not answers_without_a_term(leader, url)
    until(lambda: leader.coordinator.leads)


def test_a_leader_takes_no_commits_while_it_cannot_write_them(leader: RunningCoordinator, url: str) -> None:
    """A fail-over would forget them; its term is valid."""
    with RawClient(str(leader.address)) as client:
        ext = {"bname": "lanemq", "laneClient": "one", "laneEpoch": str(owned(client, "one"))}

        def commit(offset: int) -> int:
            named = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
            return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**named, **ext}).code

        assert commit(1) == 0
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("ALTER TABLE lanemq.offsets ADD CONSTRAINT full_disk CHECK (value < 2)")
            assert commit(2) == 0, "it does not know yet"
            until(lambda: commit(3) == ResponseCode.SYSTEM_BUSY)
            assert leader.coordinator.leads
            db.execute("ALTER TABLE lanemq.offsets DROP CONSTRAINT full_disk")
        until(lambda: commit(4) == 0)


def test_a_leader_that_does_not_look_at_its_term_answers(
    leader: RunningCoordinator, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(Term, "answers", lambda self, *, now: not self.ended)
    monkeypatch.setattr(Term, "check", lambda self, *, now: not self.ended)
    assert answers_without_a_term(leader, url)


def test_an_answer_that_was_made_in_the_term_does_not_leave_after_it(leader: RunningCoordinator) -> None:
    """As in a process that is frozen between the two."""
    reign, loop = leader.coordinator.running, leader.loop
    with RawClient(str(leader.address)) as client:
        assert client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).code == 0
        (peer,) = [each for each in reign.server.peers if each.remote.port == client.socket.getsockname()[1]]

        def late() -> None:
            with reign.server.outbox:
                peer.send(b"an answer")
                leader.coordinator._store.term.end("it has run out meanwhile")  # type: ignore[union-attr]

        loop.call_soon_threadsafe(late)
        client.socket.settimeout(5)
        with contextlib.suppress(OSError):
            assert client.socket.recv(100) == b""


def test_a_request_that_waited_in_a_frozen_process_is_not_carried_out(leader: RunningCoordinator) -> None:
    handled, aborted = list[Command](), list[bool]()
    context, term = leader.coordinator.running.context, leader.coordinator._store.term
    gate = TermGate(lambda _, request: handled.append(request), context, lambda _: None)
    peer: Any = SimpleNamespace(abort=lambda: aborted.append(True))
    gate(peer, Command(RequestCode.LOCK_BATCH_MQ, 1))
    assert term is not None
    term.end("it has run out meanwhile")
    gate(peer, Command(RequestCode.LOCK_BATCH_MQ, 2))
    assert [request.opaque for request in handled] == [1]
    assert aborted == [True]


def test_a_member_that_leaves_a_coordinator_after_its_term_changes_nothing(leader: RunningCoordinator) -> None:
    """A coordinator that was frozen finds its connections closed. Another one has the leases."""
    reign, term = leader.coordinator.running, leader.coordinator._store.term
    assert term is not None
    with RawClient(str(leader.address)) as client:
        client.heartbeat("one", GROUP, {TOPIC: "*"}, laneExpiryMillis="5000")
        until(lambda: client.lane_lock("one", TOPIC, group=GROUP, laneKeepAliveMillis="800").lane_leases)
        queue = MessageQueue(TOPIC, BROKER, 0)
        before = reign.context.locks.latest(GROUP, queue)
        (peer,) = [each for each in reign.server.peers if each.remote.port == client.socket.getsockname()[1]]

        def late() -> None:
            term.end("it has run out meanwhile")
            reign.server.dispatcher.closed(peer)

        leader.loop.call_soon_threadsafe(late)
        until(lambda: leader.coordinator.leads and leader.coordinator.running is not reign)
    assert reign.context.locks.latest(GROUP, queue) == before


# a database that is silent


def sessions(url: str) -> set[int]:
    """The server's processes that serve coordinators."""
    with psycopg.connect(url) as db:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'lanemq-coordinator'"
        return {pid for (pid,) in db.execute(query).fetchall()}


@contextlib.contextmanager
def silent(process: int) -> Iterator[None]:
    """The machine of the server acknowledges what it gets, and nothing answers."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_coordinator_that_waits_leaves_a_silent_connection_and_can_lead(
    contend: Contend, leader: RunningCoordinator, url: str
) -> None:
    before = sessions(url)
    other = contend()
    (session,) = sessions(url) - before
    with silent(session):
        leader.stop()
        until(lambda: other.coordinator.leads)


@pytest.mark.parametrize("leads", [True, False])
def test_a_coordinator_stops_although_its_database_is_silent(
    contend: Contend, leader: RunningCoordinator, url: str, leads: bool
) -> None:
    before = sessions(url)
    other = contend()
    (session,) = before if leads else sessions(url) - before
    stopped = (leader if leads else other).coordinator
    with silent(session):
        until(lambda: leads or stopped._clock.now() > stopped._election.last_tick + 1_000)  # it has asked
        (leader if leads else other).stop()


def test_who_hands_over_answers_nothing_once_another_one_may_lead(
    leader: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own term is valid until the answer of the database is here."""
    peers, hand_over = list[int](), PostgresRows.hand_over
    server = leader.coordinator.running.server

    def watched(rows: PostgresRows) -> None:
        peers.append(len(server.peers))
        hand_over(rows)

    monkeypatch.setattr(PostgresRows, "hand_over", watched)
    with RawClient(str(leader.address)) as client:
        assert client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).code == 0
        leader.stop()
    assert peers == [0]


# a state that goes back

_SAVED = ("leases", "kv", "offsets")


def go_back(url: str) -> Callable[[], None]:
    """Notes what is in the database; what it returns puts that back, as a fail-over without the last commits does."""
    with psycopg.connect(url, autocommit=True) as db:
        for table in _SAVED:
            db.execute(f"CREATE TABLE lanemq.{table}_before AS SELECT * FROM lanemq.{table}")

    def back() -> None:
        with psycopg.connect(url) as db:
            db.execute("UPDATE lanemq.leader SET serial = serial - 1")
            for table in _SAVED:
                db.execute(
                    f"DELETE FROM lanemq.{table}; INSERT INTO lanemq.{table} SELECT * FROM lanemq.{table}_before"
                )

    return back


def epochs_around_a_loss(leader: RunningCoordinator, url: str) -> tuple[int, int]:
    """The epoch of an owner of whom the database forgets, and that of the next one."""
    with RawClient(str(leader.address)) as client:
        assert owned(client, "earlier")
        client.unlock("earlier", TOPIC, group=GROUP)
        back = go_back(url)
        first = owned(client, "one")
        client.unlock("one", TOPIC, group=GROUP)
    before = leader.coordinator.running.context.term
    back()
    until(lambda: leader.coordinator.leads and leader.coordinator.running.context.term > before)
    with RawClient(str(leader.address)) as client:
        return first, owned(client, "two")


def test_no_epoch_is_granted_twice_although_the_state_has_gone_back(leader: RunningCoordinator, url: str) -> None:
    first, second = epochs_around_a_loss(leader, url)
    assert second > first > 0


def test_without_a_floor_outside_the_state_the_same_epoch_is_granted_twice(
    leader: RunningCoordinator, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(KnownEntries, "limit", 0)
    first, second = epochs_around_a_loss(leader, url)
    assert second == first


def test_a_member_that_was_granted_a_higher_epoch_raises_the_floor(leader: RunningCoordinator) -> None:
    with RawClient(str(leader.address)) as client:
        client.heartbeat("one", GROUP, {TOPIC: "*"}, laneHighestEpoch=str(10**13))
        assert owned(client, "one") > 10**13


def test_a_member_that_has_seen_a_higher_term_makes_the_leader_begin_one_above_it(leader: RunningCoordinator) -> None:
    with RawClient(str(leader.address)) as client, contextlib.suppress(OSError, EOFError, AssertionError):
        client.heartbeat("one", GROUP, {TOPIC: "*"}, laneTerm="50")
    until(lambda: leader.coordinator.leads and leader.coordinator.running.context.term > 50)


def test_a_leader_of_a_state_that_may_have_lost_changes_ends_all_leases_and_waits(
    contend: Contend, leader: RunningCoordinator, url: str
) -> None:
    with RawClient(str(leader.address)) as client:
        epoch = owned(client, "one")
    leader.stop()
    with psycopg.connect(url, autocommit=True) as db:  # as a server that was restarted meanwhile
        db.execute("UPDATE lanemq.kv SET value = 'another run' WHERE name = 'led in'")
    other = contend()
    until(lambda: other.coordinator.leads)
    with RawClient(str(other.address)) as client:
        client.heartbeat("one", GROUP, {TOPIC: "*"}, laneExpiryMillis="5000")
        held = other.coordinator.running.queues.grants_from
        assert not client.lane_lock("one", TOPIC, group=GROUP).lane_leases, "nobody is owner any more"
        assert owned(client, "two") > epoch
        assert other.coordinator._clock.now() >= held > 0


def another_run(url: str) -> None:
    """As a server that was restarted since the last leader began."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE lanemq.kv SET value = 'another run' WHERE name = 'led in'")


def test_a_leader_that_ends_while_new_owners_wait_makes_the_next_one_wait_again(
    contend: Contend, leader: RunningCoordinator, url: str
) -> None:
    leader.stop()
    another_run(url)
    second = contend()
    until(lambda: second.coordinator.leads)
    assert second.coordinator.running.queues.grants_from > second.coordinator._clock.now()
    second.stop()
    third = contend()
    until(lambda: third.coordinator.leads)
    wait = third.coordinator.running.queues.grants_from
    assert wait > third.coordinator._clock.now() + 4_000
    with RawClient(str(third.address)) as client:
        assert owned(client, "one")
    assert third.coordinator._clock.now() >= wait
    until(lambda: third.coordinator._store.group_rows.get(NEW_OWNERS_WAIT) == "0")


def test_a_leader_does_not_vouch_for_a_state_that_may_have_lost_the_whole_term_of_another_one(
    contend: Contend, leader: RunningCoordinator, url: str
) -> None:
    """The other one led for a while, and a fail-over to the moment before has left nothing of that."""
    with RawClient(str(leader.address)) as client:
        assert owned(client, "one")
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute("SELECT term, leader, serial, address FROM lanemq.leader").fetchone()
        assert row is not None
        db.execute("UPDATE lanemq.leader SET term = term + 1, leader = 'other', serial = 0")
    election, store = leader.coordinator._election, leader.coordinator._store
    until(lambda: election.known_term > row[0])
    assert store.term is not None
    former = store.term.row
    with psycopg.connect(url, autocommit=True) as db:
        values = (former.term, former.leader, former.serial, former.address)
        db.execute("UPDATE lanemq.leader SET term = %s, leader = %s, serial = %s, address = %s", values)
    another_run(url)
    until(lambda: leader.coordinator.leads)
    assert leader.coordinator.running.queues.grants_from > leader.coordinator._clock.now()


def test_a_leader_reads_its_state_in_the_thread_of_the_rows_only(
    leader: RunningCoordinator, monkeypatch: pytest.MonkeyPatch, cluster: EmbeddedBroker
) -> None:
    """Its event loop would stand still while the database is silent."""
    monkeypatch.setattr("lanemq.coordinator.watch.COPIES_EVERY_MS", 100)
    threads, rows = list[str](), PostgresRows.rows

    def watched(*given: Any) -> list[Any]:
        threads.append(threading.current_thread().name)
        return rows(*given)

    monkeypatch.setattr(PostgresRows, "rows", watched)
    with RawClient(str(leader.address)) as client, RawClient(cluster.address) as at_broker:
        for _ in range(5):
            at_broker.send(TOPIC)
        named = {"bname": "lanemq", "laneClient": "one", "laneEpoch": str(owned(client, "one"))}
        assert client.commit(3, TOPIC, group=GROUP, **named).code == 0
        until(lambda: at_broker.committed(TOPIC, group=GROUP) == 3)
    assert set(threads) <= {"lanemq-rows"}


def test_what_is_left_of_a_former_term_writes_nothing_in_the_next_one(leader: RunningCoordinator) -> None:
    rows, before = leader.coordinator.running.context.state, leader.coordinator.running.context.term
    leader.coordinator._store.term.end("for the test")  # type: ignore[union-attr]
    until(lambda: leader.coordinator.leads and leader.coordinator.running.context.term > before)
    with pytest.raises(Exception, match="does not lead any more"):
        rows.put("name", "late")
    assert leader.coordinator.running.context.state.get("name") is None


# refusals


def test_the_database_of_another_cluster_is_refused(
    contend: Contend, leader: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.coordinator.loading.cluster_name", lambda _: "elsewhere")
    with pytest.raises(UsageError, match="belongs to the cluster"):
        contend()


# members


def test_members_follow_the_leader(contend: Contend, leader: RunningCoordinator, cluster: EmbeddedBroker) -> None:
    other, seen = contend(), list[Message]()
    app = App(cluster.address, group=GROUP)

    @app.ordered(TOPIC)
    def handle(message: Message) -> None:
        seen.append(message)

    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 0}, key="a")
        app.start()
        until(lambda: len(seen) == 1)
        leader.stop()
        until(lambda: other.coordinator.leads)
        producer.send(TOPIC, {"n": 1}, key="a")
        until(lambda: len(seen) == 2)
        app.stop()
    assert [message.value()["n"] for message in seen] == [0, 1]
    assert seen[1].epoch == seen[0].epoch, "it has kept the queue"


def test_what_a_frozen_leader_has_not_written_is_committed_again_at_the_next_one(
    contend: Contend, cluster: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are open, and no new message makes the member commit."""
    with monkeypatch.context() as patched:
        patched.setattr("lanemq.broker.storage.progress_keeper.OFFSETS_EVERY_MS", 10**6)
        leader = contend()
        until(lambda: leader.coordinator.leads)
    with CoordinatedAdmin(cluster.address) as admin:
        assert admin.move(GROUP, apply=True).moved
    other, app = contend(), App(cluster.address, group=GROUP)

    @app.ordered(TOPIC)
    def handle(message: Message) -> None:
        """It is done."""

    def committed(running: RunningCoordinator) -> int:
        places = running.coordinator.running.context.progress.of_group(GROUP)
        return sum(each.offset or 0 for each in places)

    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 0}, key="a")
    app.start()
    until(lambda: committed(leader) == 1)
    leader.loop.call_soon_threadsafe(time.sleep, 6.0)
    until(lambda: other.coordinator.leads)
    until(lambda: committed(other) == 1)
    app.stop()


# operations


def test_a_folder_moves_to_a_database_and_groups_keep_everything(
    contend: Contend, moved: RunningCoordinator, url: str, cluster: EmbeddedBroker, start: Start, tmp_path: Path
) -> None:
    with RawClient(str(moved.address)) as client:
        epoch = owned(client, "one")
        named = {"bname": "lanemq", "laneClient": "one", "laneEpoch": str(epoch)}
        assert client.commit(5, TOPIC, group=GROUP, **named).code == 0
    moved.stop()
    words = ["migrate", "--data", str(tmp_path / "coordinator"), "--state", url]
    shown = CliRunner().invoke(main, [*words, "--dry-run"])
    assert "leases" in shown.output
    assert CliRunner().invoke(main, [*words, "--yes"]).exit_code == 0
    with pytest.raises(UsageError, match="was moved to"):
        start()
    running = contend()
    until(lambda: running.coordinator.leads)
    with RawClient(str(running.address)) as client:
        assert owned(client, "one") == epoch
        lease = client.lane_lock("one", TOPIC, group=GROUP).lane_leases[0]
    assert lease.offset == 5
    again = CliRunner().invoke(main, [*words, "--yes"])
    assert again.exit_code == 2
    assert "already" in again.output


def test_status_and_doctor_show_the_leader_and_its_state(
    leader: RunningCoordinator, url: str, cluster: EmbeddedBroker
) -> None:
    status = CliRunner().invoke(main, ["status", "--server", cluster.address])
    assert f"coordinator at {leader.address}, leads for" in status.output
    assert "others take over, term 1, state in PostgreSQL" in status.output
    described = CliRunner().invoke(main, ["group", "describe", GROUP, "--server", cluster.address])
    assert f"coordinated by {leader.address}, term 1, state in PostgreSQL" in described.output
    doctor = CliRunner().invoke(main, ["doctor", "--state", url])
    assert "has 1 group of cluster" in doctor.output
    assert "fsync is off" in doctor.output


def test_a_renewal_is_sent_between_two_reads_of_a_long_start(leader: RunningCoordinator) -> None:
    """A new leader reads everything; its term must not run out meanwhile."""
    store, term = leader.coordinator._store, leader.coordinator._store.term
    assert term is not None
    serial = term.serial
    term._valid_until = Millis(leader.coordinator._clock.now() + 500)
    store.group_rows.groups()
    assert term.serial > serial
