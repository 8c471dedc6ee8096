"""Small files that exist completely or not at all."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from lanemq.model.errors import StateLost

S = TypeVar("S", bound=msgspec.Struct)


def write_durably(path: Path, content: bytes, through: Path | None = None) -> None:
    """Write a file and sync it before it gets its name. Concurrent writes of the same file are harmless.

    `through`: the folder that the file is renamed from. Moving this folder away makes every later write fail with
    FileNotFoundError, without a lock.
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


def read_json(path: Path, kind: type[S]) -> S:
    """Decode the file; `StateLost` if it is damaged. FileNotFoundError is left to the caller."""
    content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise StateLost(f"{path} is damaged ({error}): restore the checkpoint's folder from a copy") from error


def sync(path: Path) -> None:
    """Write a file's bytes, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
