"""Small files that are either there and whole, or not there."""

import os
from pathlib import Path

import msgspec

from lanemq.model.errors import StateLost


def write_durably(path: Path, content: bytes, through: Path | None = None) -> None:
    """On disk under its name when this returns. Writing the same file again is harmless, also at the same time.

    `through`: the folder that the file is renamed from. Whoever moves it away makes every write that has not happened
    yet fail with FileNotFoundError, without a lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own = (through or path.parent) / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with own.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        own.rename(path)
    finally:
        own.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, value: msgspec.Struct) -> None:
    write_durably(path, msgspec.json.encode(value))


def read_json(path: Path, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """The struct; `StateLost` if the file is damaged. A missing file is the caller's `FileNotFoundError`."""
    content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise StateLost(f"{path} is damaged ({error}): restore the checkpoint's folder from a copy") from error


def sync(path: Path) -> None:
    """A file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
