"""Sound inputs to start from: bytes that are almost right get further than noise.

Every request code once in either header form, with every ext field that any request knows; every JSON body; batches,
records and compressed bodies as clients and the log write them.
"""

import zlib

import lz4.frame
import msgspec
import zstandard
from tests.broker.raw_client import heartbeat, lock_body, pull_ext, send_ext
from tests.wire.encoding import encode_batch, encode_record

from lanemq.model.stamp import Stamp
from lanemq.wire import admin_headers, bodies, headers, lane_bodies, route_bodies, stats_bodies
from lanemq.wire.bodies import Body
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command, encode_command
from lanemq.wire.headers import Header
from lanemq.wire.properties import encode_properties
from lanemq.wire.stats_bodies import QueueTableBody

TOPIC = "Fuzzed"
GROUP = "fuzzers"
BODY_MODULES = (bodies, route_bodies, stats_bodies, lane_bodies)


def _kinds(modules: tuple[object, ...], base: type) -> list[type]:
    found = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    kinds = [kind for kind in found if issubclass(kind, base) and kind not in (base, QueueTableBody)]
    return sorted(kinds, key=lambda kind: kind.__name__)


HEADERS: list[type[Header]] = _kinds((headers, admin_headers), Header)
BODIES: list[type[Body]] = _kinds(BODY_MODULES, Body)
PROPERTIES = encode_properties({"TAGS": "a", "KEYS": "x y", "__SHARDINGKEY": "k", "UNIQ_KEY": "0" * 32})
STAMPED = PROPERTIES + encode_properties({"LANE_STAMP": str(Stamp("p" * 22, 1, 7))})


def any_ext() -> dict[str, str]:
    """Every field of every header, with a value of its kind."""
    ext: dict[str, str] = {}
    for kind in HEADERS:
        for info in msgspec.structs.fields(kind):
            text = str(info.type)
            ext[info.encode_name] = "true" if "bool" in text else "0" if "int" in text else "x"
    named = {"topic": TOPIC, "b": TOPIC, "consumerGroup": GROUP, "group": GROUP, "producerGroup": "p"}
    return dict(list((ext | named | send_ext(TOPIC, properties={"a": "b"}) | pull_ext(TOPIC, 0)).items())[:120])


BATCH = encode_batch([(0, b"first", PROPERTIES), (0, b"second", STAMPED), (0, b"", "")])
JSON_BODIES = [
    heartbeat("client@1", GROUP, {TOPIC: "a||b", "Other": "*"}),
    lock_body("client@1", TOPIC, (0, 1, 2), GROUP),
    b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:{"brokerOffset":1,"consumerOffset":1}}}',
    b'{"a":{"$ref":"$.b"},"b":[1,{"$ref":"$"},null,true,-1.5e3,"\\u0041"]}',
    *(kind().encode() for kind in BODIES),
]
RECORD = encode_record(topic="t", body=b"body" * 9, properties_text=STAMPED, queue_id=1, queue_offset=5, position=0)
V6_FLAGS = RECORD[:36] + b"\0\0\0\x30" + RECORD[40:]
COMPRESSED = [
    b"\1" + zlib.compress(b"z" * 5000),
    b"\2" + lz4.frame.compress(b"z" * 5000),
    b"\3" + zstandard.compress(b"z" * 5000),
]


def frames() -> list[bytes]:
    """A whole request of every code, in either header form."""
    ext, found = any_ext(), list[bytes]()
    for code in RequestCode:
        body = JSON_BODIES[code % 2] if code not in (RequestCode.SEND_BATCH_MESSAGE,) else BATCH
        forms = (0, 1) if code < 1 << 15 else (0,)
        found += [encode_command(Command(code, 7, 0, ext, body, serialize_type=form)) for form in forms]
    send = encode_command(Command(RequestCode.SEND_MESSAGE_V2, 7, 0, send_ext(TOPIC, stamp="p.0.0"), b"body"))
    pull = encode_command(Command(RequestCode.PULL_MESSAGE, 7, 0, pull_ext(TOPIC, 0), b""))
    batch = encode_command(Command(RequestCode.SEND_BATCH_MESSAGE, 7, 0, send_ext(TOPIC, batch=True), BATCH))
    return [*found, send, send * 3, pull, batch]
