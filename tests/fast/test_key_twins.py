"""The twins that read every record return the same as their references, for valid and for damaged bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import damaged, needs_twins, outcome, references, same, twins
from tests.wire.encoding import encode_record

pytestmark = needs_twins

NAMES = st.sampled_from(["__SHARDINGKEY", "UNIQ_KEY", "KEYS", "X__SHARDINGKEY", "TAGS", ""])
TEXTS = st.lists(
    st.tuples(NAMES, st.sampled_from(["", "a", "b c", "ключ", "__SHARDINGKEY", "a\x01b"])), max_size=5
).map(lambda entries: "".join(f"{name}\x01{value}\x02" for name, value in entries))
MESSAGES = st.lists(st.tuples(st.sampled_from(["T", "Тема"]), st.binary(max_size=8), TEXTS), max_size=4)


def log_of(messages: list[tuple[str, bytes, str]], position: int = 100) -> bytes:
    data = b""
    for number, (topic, body, text) in enumerate(messages):
        data += encode_record(
            topic=topic, body=body, properties_text=text, queue_id=0, queue_offset=number, position=position + len(data)
        )
    return data


LOGS = MESSAGES.map(log_of)


@settings(deadline=None, max_examples=200)
@given(LOGS | damaged(LOGS) | st.binary(max_size=100))
def test_keys_are_scanned_alike(log: bytes) -> None:
    same("scan_keys", log, 100)


def test_a_record_at_another_position_is_refused() -> None:
    log = log_of([("T", b"", "UNIQ_KEY\x01a\x02")])
    assert same("scan_keys", log, 100)[2] == len(log)
    assert same("scan_keys", log, 101) == (b"", b"", 0)


@settings(deadline=None, max_examples=200)
@given(MESSAGES.filter(bool).map(log_of), st.integers(-1, 3))
def test_keys_are_found_alike(log: bytes, number: int) -> None:
    starts = references["record_starts"](log)
    same("find_key", log, starts[min(number, len(starts) - 1)])


@settings(deadline=None, max_examples=200)
@given(damaged(MESSAGES.filter(bool).map(log_of)) | st.binary(max_size=150), st.integers(0, 150))
def test_a_key_is_never_read_outside_of_the_buffer(log: bytes, start: int) -> None:
    """Damaged records reach no consumer, so the two may differ; the twin must only return or raise."""
    found = outcome(twins["find_key"], log, start)
    assert found is None or isinstance(found, str | tuple)
