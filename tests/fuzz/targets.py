"""The targets of fuzzing: everything that reads foreign bytes, and the one error that each may raise."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import corpus
from tests.log.conftest import SMALL, crash, log_files, read_all, send
from tests.wire.encoding import check_record, split_batch

from lanemq.log.store import Store
from lanemq.model.errors import RemoteProtocolError, StorageError
from lanemq.wire.batch import split_batch_raw
from lanemq.wire.command import Frame, FrameDecoder, decode_command
from lanemq.wire.compression import decompress
from lanemq.wire.headers import SendHeader
from lanemq.wire.loose_json import loads_loose
from lanemq.wire.properties import decode_properties, find_property, find_stamp, remove_property, stamp_in
from lanemq.wire.record import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    RecordView,
    record_starts,
)
from lanemq.wire.sends import read_sends

RECORD_FIELDS = (
    "size", "queue_id", "flag", "queue_offset", "position", "sys_flag", "born_timestamp", "born_host",
    "store_timestamp", "store_host", "reconsume_times", "body", "topic", "properties_text", "properties",
)  # fmt: skip
FLAGS = {1: COMPRESSION_ZLIB, 2: COMPRESSION_LZ4, 3: COMPRESSION_ZSTD}
MOST_PLAIN_BYTES = 1 << 20


class Target(NamedTuple):
    """`call` must return, or raise `allowed`."""

    corpus: list[bytes]
    call: Callable[[bytes], object]
    allowed: type[Exception] = RemoteProtocolError


def _frame(data: bytes) -> None:
    """In one piece and in two: whatever it is, it must be the same."""
    whole, parts = FrameDecoder(), FrameDecoder()
    half = len(data) // 2
    found = whole.feed(data)
    assert parts.feed(data[:half]) + parts.feed(data[half:]) == found
    assert whole.pending <= len(data)


def _command(data: bytes) -> None:
    for frame in FrameDecoder().feed(data):
        command = decode_command(frame)
        assert all(type(value) is str for value in command.ext.values())
        read_sends([frame, frame], 2)
        for kind in corpus.HEADERS:
            _allowing(kind.from_ext, command.ext)
        _allowing(SendHeader.from_ext_v1, command.ext)


def _bare_header(data: bytes) -> None:
    for form in (0, 1):
        _allowing(decode_command, Frame(form, data, b""))


def _allowing(action: Callable[..., object], *given: object) -> None:
    """A refusal must not affect the next reader."""
    try:
        action(*given)
    except RemoteProtocolError:
        return


def _body(data: bytes) -> None:
    _allowing(loads_loose, data)
    for kind in corpus.BODIES:
        _allowing(kind.decode, data)


def _record(data: bytes) -> None:
    check_record(data, 0, len(data))
    for name in RECORD_FIELDS:
        _allowing(getattr, RecordView(data), name)
    record_starts(data)


def _batch(data: bytes) -> None:
    _allowing(split_batch_raw, data)
    split_batch(data)


def _properties(data: bytes) -> None:
    text = data.decode(errors="replace")
    found = decode_properties(text)
    assert find_property(text, "TAGS") == found.get("TAGS")
    remove_property(text, "TAGS")
    find_stamp(text)
    stamp_in(text.encode())


def _compressed(data: bytes) -> None:
    plain = decompress(COMPRESSED | FLAGS.get(data[0] if data else 0, 0), data[1:], MOST_PLAIN_BYTES)
    assert len(plain) <= MOST_PLAIN_BYTES


DECODERS = {
    "frame": Target(corpus.frames(), _frame),
    "command": Target(corpus.frames(), _command),
    "bare header": Target([frame[8:] for frame in corpus.frames()], _bare_header),
    "JSON body": Target(corpus.JSON_BODIES, _body),
    "batch": Target([corpus.BATCH], _batch),
    "record": Target([corpus.RECORD, corpus.V6_FLAGS, corpus.RECORD * 3], _record),
    "properties": Target([corpus.PROPERTIES.encode(), corpus.STAMPED.encode()], _properties),
    "compressed body": Target(corpus.COMPRESSED, _compressed),
}


def log_reader(folder: Path) -> Target:
    """A killed broker's log whose bytes were damaged since: it opens, gives nothing wrong, and takes new messages."""
    sound, hurt = folder / "sound", folder / "hurt"
    texts = [f"message {number}" for number in range(5)]
    store = Store(sound, SMALL)
    store.recover()
    send(store, *texts)
    crash(store)
    name = log_files(sound)[0].name

    def recover(data: bytes) -> None:
        shutil.rmtree(hurt, ignore_errors=True)
        shutil.copytree(sound, hurt)
        (hurt / "log" / name).write_bytes(data)
        store = Store(hurt, SMALL)
        try:
            store.recover()
            found, _ = read_all(store)
            assert [each for each in texts if each in found] == found, "a wrong message, or one in a wrong place"
            send(store, "after")
            assert read_all(store)[0] == [*found, "after"]
        finally:
            crash(store)

    return Target([log_files(sound)[0].read_bytes()], recover, StorageError)
