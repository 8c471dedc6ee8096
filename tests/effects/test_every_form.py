"""The contract of `once`, in every form of database: each message has its effect once, from its owner."""

import pytest
from tests.effects import forms
from tests.effects.forms import Form
from tests.effects.messages import HOUR, QUEUE, JumpingClock, delivered

from lanemq import Skip
from lanemq.client.copies import OriginalPlace
from lanemq.client.message import Message
from lanemq.effects import AlreadyApplied, EffectRefused, transaction
from lanemq.effects.statements import EffectTables, Statement
from lanemq.errors import LeaseLost, UsageError
from lanemq.model.queue import MessageQueue

every_form = pytest.mark.parametrize(
    "form",
    [
        *forms.SQLITE,
        *forms.ASYNC_SQLITE,
        *(pytest.param(name, marks=pytest.mark.slow) for name in (*forms.POSTGRES, *forms.ASYNC_POSTGRES)),
    ],
    indirect=True,
)

each_dialect = pytest.mark.parametrize(
    "form",
    ["sqlite3", "unknown-driver", *(pytest.param(name, marks=pytest.mark.slow) for name in ("psycopg", "asyncpg"))],
    indirect=True,
)
"""One form of each kind of database, for rules that do not depend on the driver."""


@every_form
def test_a_repeat_has_no_second_effect(form: Form) -> None:
    form.apply(delivered(5), "first")
    with pytest.raises(AlreadyApplied):
        form.apply(delivered(5), "again")
    with pytest.raises(AlreadyApplied):
        form.apply(delivered(4), "older")
    form.apply(delivered(6), "next")
    form.apply(delivered(5, "other-key"), "other key")
    form.apply(delivered(2, None), "no key")
    assert form.effects() == ["first", "next", "no key", "other key"]


@every_form
def test_a_block_that_raises_leaves_nothing_behind_and_can_be_tried_again(form: Form) -> None:
    with pytest.raises(ZeroDivisionError):
        form.apply(delivered(5), "failed", ZeroDivisionError())
    assert form.effects() == []
    form.apply(delivered(5), "done")
    assert form.effects() == ["done"]


@every_form
def test_an_older_owner_is_refused_as_soon_as_a_newer_one_has_applied_any_key(form: Form) -> None:
    form.apply(delivered(5, "a", epoch=7), "old owner")
    form.apply(delivered(6, "b", epoch=8), "new owner")
    with pytest.raises(LeaseLost, match="epoch 7"):
        form.apply(delivered(7, "a", epoch=7), "stale")
    with pytest.raises(LeaseLost):
        form.apply(delivered(5, "a", epoch=7), "stale repeat")
    with pytest.raises(AlreadyApplied):
        form.apply(delivered(5, "a", epoch=8), "repeat after the hand-over")
    form.apply(delivered(7, "a", epoch=8), "new owner continues")
    assert form.effects() == ["new owner", "new owner continues", "old owner"]


@every_form
def test_a_batch_is_one_effect_and_names_what_was_applied_before(form: Form) -> None:
    form.apply([delivered(1), delivered(2)], "1+2")
    with pytest.raises(AlreadyApplied) as some:
        form.apply(longer := [delivered(1), delivered(2), delivered(3)], "1+2+3")
    assert some.value.message is longer[1]
    form.apply([delivered(3)], "3")
    with pytest.raises(AlreadyApplied) as whole:
        form.apply(again := [delivered(2), delivered(3)], "2+3 again")
    assert whole.value.message is again[1]
    with pytest.raises(AlreadyApplied) as between:
        form.apply([delivered(4, "new"), delivered(3), delivered(5)], "mixed")
    assert between.value.message is None
    assert form.effects() == ["1+2", "3"]


@every_form
def test_groups_topics_and_queues_do_not_know_each_other(form: Form) -> None:
    form.apply(delivered(5, epoch=9), "shop")
    form.apply(delivered(5, group="audit"), "audit")
    form.apply(delivered(5, queue=MessageQueue("payments", "lanemq", 4)), "queue 4")
    form.apply(delivered(5, queue=MessageQueue("payments", "other", 3)), "other broker")
    form.apply(delivered(5, queue=MessageQueue("orders", "lanemq", 3)), "orders")
    form.apply(delivered(5), "own table", table="own_effects")
    assert form.effects() == ["audit", "orders", "other broker", "own table", "queue 4", "shop"]
    form.query("DROP TABLE own_effects")
    form.query("DROP TABLE own_effects_epochs")


@every_form
def test_forgotten_messages_are_applied_again(form: Form) -> None:
    form.forget(group="shop", topic="payments")
    for key in ("a", "b"):
        form.apply(delivered(5, key, epoch=3), key)
    form.forget(group="shop", topic="payments", key="a")
    form.apply(delivered(4, "a", epoch=3), "a again")
    with pytest.raises(AlreadyApplied):
        form.apply(delivered(5, "b", epoch=3), "b again")
    form.forget(group="shop", topic="payments")
    form.apply(delivered(5, "b", epoch=1), "b from a broker that counts anew")
    assert form.effects() == ["a", "a again", "b", "b from a broker that counts anew"]


@each_dialect
def test_a_copy_at_another_broker_counts_as_its_original(form: Form) -> None:
    """Positions of the two logs and epochs of the two queues have nothing to do with each other."""
    there = MessageQueue("payments", "broker-a", 1)

    def copy(offset: int, key: str = "k") -> Message:
        place = OriginalPlace(QUEUE, offset * 1000, offset * 10)
        return delivered(offset - 5, key, queue=there, epoch=0, copied_from=place, stored_ms=9_000)

    form.apply(delivered(8, epoch=7), "at the source")
    for offset in (7, 8):
        with pytest.raises(AlreadyApplied):
            form.apply(copy(offset), "again")
    form.apply(copy(9), "next")
    with pytest.raises(AlreadyApplied):
        form.apply(delivered(9, epoch=7), "still at the source")
    form.apply([copy(10), delivered(6, queue=there, epoch=0)], "a copy, and one that was sent there")
    with pytest.raises(AlreadyApplied):
        form.apply(copy(10), "again")
    assert form.effects() == ["a copy, and one that was sent there", "at the source", "next"]


@pytest.mark.parametrize("form", [next(iter(forms.SQLITE))], indirect=True)
def test_without_the_place_of_its_original_a_copy_is_applied_again(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(transaction, "original_place", lambda *_: None)
    form.apply(delivered(8), "at the source")
    there = MessageQueue("payments", "broker-a", 1)
    form.apply(delivered(1, queue=there, copied_from=OriginalPlace(QUEUE, 8000, 80)), "again")
    assert form.effects() == ["again", "at the source"]


@each_dialect
def test_copies_of_a_queue_that_was_never_read_itself_can_be_forgotten(form: Form) -> None:
    there = MessageQueue("payments", "broker-a", 1)
    message = delivered(1, queue=there, epoch=0, copied_from=OriginalPlace(QUEUE, 5000, 50))
    form.apply(message, "first")
    form.forget(group="shop", topic="payments", key="k")
    form.apply(message, "again")
    assert form.effects() == ["again", "first"]


@every_form
def test_rows_are_deleted_when_their_time_is_over(form: Form) -> None:
    clock = JumpingClock()
    form.apply(delivered(1, "short"), "short", clock=clock, keep=HOUR / 1000)
    form.apply(delivered(2, "long"), "long", clock=clock, keep=10 * HOUR / 1000)
    for hour in range(5):
        clock.running_ms += HOUR
        form.apply(delivered(3 + hour, "later"), "later", clock=clock)
    assert sorted(row[0] for row in form.query("SELECT lane FROM lanemq_effects")) == ["later", "long"]


@every_form
@pytest.mark.parametrize("days", [20, 3_000, -3_000])
def test_no_row_is_deleted_because_a_wall_clock_jumps(form: Form, days: int) -> None:
    """The process whose clock jumps, and one that begins after that."""
    clock = JumpingClock()
    form.apply(delivered(1, "a"), "a", clock=clock)
    for offset in (2, 3):
        clock.wall_ms += days * 24 * HOUR
        clock.running_ms += HOUR
        form.apply(delivered(offset, "b"), "b", clock=clock)
    for again in (clock, JumpingClock()):
        with pytest.raises(AlreadyApplied):
            form.apply(delivered(1, "a"), "again", clock=again)


@every_form
def test_messages_without_order_are_known_by_their_id_also_in_the_retry_topic(form: Form) -> None:
    retry = MessageQueue("%RETRY%shop", "lanemq", 0)
    form.apply(delivered(9, in_order=False, message_id="A9"), "nine")
    form.apply(delivered(8, in_order=False, message_id="A8"), "eight")
    for again in (
        delivered(9, in_order=False, message_id="A9"),
        delivered(0, queue=retry, sent_to="payments", message_id="A9"),
        delivered(0, queue=retry, sent_to="payments", message_id="A9", in_order=False),
    ):
        with pytest.raises(AlreadyApplied):
            form.apply(again, "again")
    assert form.effects() == ["eight", "nine"]


@every_form
def test_what_contradicts_the_database_is_refused_and_neither_applied_nor_skipped(form: Form) -> None:
    form.apply(delivered(5, position=5000, stored_ms=100), "applied")
    with pytest.raises(EffectRefused, match="forget"):
        form.apply(delivered(0, position=10, stored_ms=200), "the broker's data was deleted")
    with pytest.raises(EffectRefused, match="newer message"):
        form.apply(delivered(4, position=4000, stored_ms=90, overtaken=True), "overtaken while it was parked")
    form.apply(delivered(0, position=6000, stored_ms=200), "the topic was created again")
    assert form.effects() == ["applied", "the topic was created again"]


@pytest.mark.slow
@pytest.mark.parametrize("form", [*forms.POSTGRES, *forms.ASYNC_POSTGRES], indirect=True)
def test_a_block_that_swallows_an_error_of_postgres_has_failed(form: Form) -> None:
    """PostgreSQL would answer the commit with a rollback, and the effect would be lost."""
    with pytest.raises(Exception, match=r"caught an error|aborted"):
        form.apply(delivered(5), "lost", swallows="SELECT does_not_exist")
    assert form.effects() == []
    form.apply(delivered(5), "done")
    assert form.effects() == ["done"]


ENDING = [
    name
    for name in (*forms.SQLITE, *forms.ASYNC_SQLITE, *forms.POSTGRES, *forms.ASYNC_POSTGRES)
    if name != "unknown-driver" and not name.startswith("asyncpg")
]
"""Forms whose handle has `commit` and `rollback`, and shows that they were called."""


@pytest.mark.parametrize(
    "form",
    [pytest.param(name, marks=[] if "sqlite" in name else pytest.mark.slow) for name in ENDING],
    indirect=True,
)
def test_a_block_that_ends_its_transaction_itself_has_failed(form: Form) -> None:
    with pytest.raises(UsageError, match="ended its transaction"):
        form.apply(delivered(5), "rolled back", calls="rollback")
    assert form.effects() == []
    form.apply(delivered(5), "done")
    assert form.effects() == ["done"]


@pytest.mark.parametrize("form", [name for name in ENDING if "sqlite" in name], indirect=True)
def test_a_block_that_commits_and_goes_on_to_write_has_failed(form: Form) -> None:
    with pytest.raises(UsageError, match="ended its transaction"):
        form.apply(delivered(5), "committed", calls="commit", writes_after="in another transaction")
    assert form.effects()[0] == "committed"  # a connection with autocommit has stored the second write too


both_kinds = pytest.mark.parametrize(
    "form", ["sqlite3", "session-sqlite", "aiosqlite", "async-session-sqlite"], indirect=True
)
"""What blocks and what is awaited, for rules that do not depend on the database."""


@both_kinds
def test_a_block_that_commits_and_then_raises_is_an_error_in_the_log(
    form: Form, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError, match="passing"):
        form.apply(delivered(5), "committed", OSError("passing"), calls="commit")
    assert "ended its transaction itself and then failed" in caplog.text


@pytest.mark.parametrize(
    "form",
    [
        *("sqlite3", "session-sqlite", "sqlalchemy-connection", "aiosqlite", "async-session-sqlite"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("psycopg", "session-postgres", "async-psycopg", "asyncpg")
        ),
    ],
    indirect=True,
)
def test_a_connection_inside_a_transaction_is_refused_and_its_transaction_goes_on(
    form: Form, request: pytest.FixtureRequest
) -> None:
    for value, end, left in (("undone", "rollback", []), ("mine", "commit", ["mine"])):
        if "[asyncpg]" in request.node.name:  # its transactions do not begin by themselves
            form.execute("BEGIN")
        form.execute(forms.INSERT.format(value))
        with pytest.raises(UsageError, match=r"inside a transaction already.*still open, with what it has written"):
            form.apply(delivered(5), "late")
        with pytest.raises(UsageError, match="inside a transaction already"):
            form.forget(group="shop", topic="payments")
        form.end(end)
        assert form.effects() == left
    form.apply(delivered(5), "once")
    assert form.effects() == ["mine", "once"]


@both_kinds
def test_an_exception_that_names_a_message_knows_whose_writes_were_undone(form: Form) -> None:
    batch = [delivered(1), delivered(2)]
    verdict = Skip(message=batch[1])
    with pytest.raises(Skip):
        form.apply(batch, "undone", verdict)
    assert verdict.rolled_back == tuple(batch)


@both_kinds
def test_a_cleaning_that_fails_does_not_fail_the_effect(
    form: Form, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(EffectTables, "stored_hour", lambda *_: Statement("SELECT 1 FROM does_not_exist"))
    form.apply(delivered(5), "first")
    form.apply(delivered(6), "on the same connection")
    assert form.effects() == ["first", "on the same connection"]
    assert "could not be deleted" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("form", ["psycopg", "session-postgres", "async-psycopg", "asyncpg"], indirect=True)
def test_a_lost_transaction_of_postgres_leaves_a_usable_connection(form: Form) -> None:
    form.query(f"INSERT INTO effects_of_the_test VALUES ('{QUEUE}')")
    with pytest.raises(Exception, match="does_not_exist"):
        form.apply(delivered(5), "x') ; SELECT does_not_exist --")
    form.apply(delivered(5), "first")
    assert form.effects() == ["first", str(QUEUE)]
