"""The fast scan for keys finds what decoding every record finds."""

from sys import byteorder

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import references
from tests.wire.encoding import encode_record

from lanemq.log.key_index import key_hash, keys_of

NAMES = st.sampled_from(["__SHARDINGKEY", "UNIQ_KEY", "KEYS", "XKEYS", "X__SHARDINGKEY", "WAIT", "LANE_STAMP", ""])
VALUES = st.sampled_from(["", "a", "b", "a b", "ключ", "UNIQ_KEY", "KEYS", "a\x01b"])
USUAL = st.sampled_from(
    ["__SHARDINGKEY\x01k\x02UNIQ_KEY\x01id\x02", "UNIQ_KEY\x01id\x02", "__SHARDINGKEY\x01id\x02UNIQ_KEY\x01id\x02"]
)
REST = st.lists(st.tuples(NAMES, VALUES), max_size=4).map(lambda e: "".join(f"{n}\x01{v}\x02" for n, v in e))
TEXTS = st.tuples(USUAL | st.just(""), REST).map("".join)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(["T", "U", "Тема"]), st.binary(max_size=8), TEXTS), max_size=4))
def test_every_key_is_found_as_if_each_record_were_decoded(messages: list[tuple[str, bytes, str]]) -> None:
    """The last property of a name counts, and text that only looks like a name does not."""
    log, hashes, positions = b"", b"", b""
    for topic, body, text in messages:
        at = 100 + len(log)
        for key in keys_of(text):
            hashes += key_hash(topic, key).to_bytes(4, "big")
            positions += at.to_bytes(8, byteorder)
        log += encode_record(topic=topic, body=body, properties_text=text, queue_id=0, queue_offset=0, position=at)
    assert references["scan_keys"](log, 100) == (hashes, positions, len(log))
