"""What differs between a local file and a remote one: durable writes, creation, copies, Arrow files.

Invariant: a file exists completely or not at all, and is durable when the call returns.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

import msgspec

from lanemq.files.paths import RemotePath, StorePath
from lanemq.model.errors import StateLost, StorageError

S = TypeVar("S", bound=msgspec.Struct)

_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""How file systems say that they have no hard links, such as FAT and some that run in user space."""


def write_durably(path: StorePath, content: bytes) -> None:
    """Write a file and sync it before it gets its name. Concurrent writes of the same file are harmless."""
    if isinstance(path, RemotePath):
        path.put(content)
        return
    own = _written_beside(cast("Path", path), content)
    try:
        own.rename(cast("Path", path))
    finally:
        own.unlink(missing_ok=True)
    sync(path.parent)


def create(path: StorePath, content: bytes) -> bool:
    """Write a file that must not be there yet; False if it is, with other content. One of several callers succeeds.

    The content should be unlike that of any other caller: a store that repeats a request after a lost answer finds
    its own file, and only the content tells.
    """
    if isinstance(path, RemotePath):
        return path.create(content)
    own = _written_beside(cast("Path", path), content)
    try:
        os.link(own, cast("Path", path))
    except FileExistsError:
        if not _is_linked(own, cast("Path", path)):
            return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StorageError(
            f"{path} cannot be created: its file system has no hard links ({error.strerror}); choose a folder on "
            f"another one, or an address of HDFS or an object store"
        ) from error
    finally:
        own.unlink(missing_ok=True)
    sync(path.parent)
    return True


def _is_linked(own: Path, path: Path) -> bool:
    """Whether both are the same file: a network file system repeats a link whose answer was lost, and finds it."""
    try:
        return own.samefile(path)
    except FileNotFoundError:
        return False


def _written_beside(path: Path, content: bytes) -> Path:
    """The content in a synced file with a name of its own."""
    _make_folder(path.parent)
    own = path.parent / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with own.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        own.unlink(missing_ok=True)
        raise
    return own


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably: a file in a folder that a power cut removes is gone too."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_json(path: StorePath, value: msgspec.Struct) -> None:
    write_durably(path, msgspec.json.encode(value))


def read_json(path: StorePath, kind: type[S]) -> S:
    """Decode the file; `StateLost` if it is damaged. FileNotFoundError is left to the caller."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (IsADirectoryError, msgspec.MsgspecError) as error:
        raise StateLost(f"{path} is damaged ({error}): restore the checkpoint's folder from a copy") from error


def sync(path: StorePath) -> None:
    """Write a local file's bytes, or a folder's entries, to the disk. Remote files are durable when they are there."""
    if isinstance(path, RemotePath):
        return
    descriptor = os.open(cast("Path", path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: StorePath) -> None:
    """Remove a folder with everything in it, as far as possible. What remains is removed by a later start."""
    if isinstance(path, RemotePath):
        with suppress(OSError, StorageError):
            path.remove_tree()
    else:
        shutil.rmtree(cast("Path", path), ignore_errors=True)


def remove_files(paths: Sequence[StorePath]) -> None:
    """Remove files of one store; missing ones are passed over."""
    if paths and isinstance(paths[0], RemotePath):
        paths[0].remove_files(cast("Sequence[RemotePath]", paths))
        return
    for path in paths:
        path.unlink(missing_ok=True)


def move(source: StorePath, target: StorePath) -> None:
    """Give a file another name, in a folder that is made if necessary; FileNotFoundError if the file is missing.

    One step, except in an object store: there the file has both names for a moment.
    """
    if isinstance(source, RemotePath):
        source.move(cast("RemotePath", target))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    cast("Path", source).rename(cast("Path", target))


def files_below(folder: StorePath) -> dict[str, int]:
    """The files in a folder and in those below it: path relative to the folder, and bytes.

    Names that begin with an underscore or a dot are left out, with everything below them, as readers of data do.
    """
    if isinstance(folder, RemotePath):
        skip = len(folder.key) + 1 if folder.key else 0
        found = {path.key[skip:]: size for path, size in folder.files_below()}
        return {name: size for name, size in found.items() if not any(map(_is_hidden, name.split("/")))}
    sizes: dict[str, int] = {}
    for at, folders, names in os.walk(cast("Path", folder)):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in names:
            if not _is_hidden(name):
                path = Path(at) / name
                with suppress(FileNotFoundError):  # it was removed after it was listed
                    sizes[str(path.relative_to(cast("Path", folder)))] = path.stat().st_size
    return sizes


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def copy(source: StorePath, target: StorePath, *, link: bool = False) -> None:
    """Copy a file. `link`: a local copy may be another name of the same file."""
    if isinstance(target, RemotePath):
        target.put(source.read_bytes())
    elif isinstance(source, RemotePath):
        cast("Path", target).write_bytes(source.read_bytes())
    elif link:
        try:
            os.link(cast("Path", source), cast("Path", target))
        except OSError:  # a file system without links
            shutil.copyfile(cast("Path", source), cast("Path", target))
    else:
        shutil.copyfile(cast("Path", source), cast("Path", target))


def arrow_source(path: StorePath) -> Any:
    """The file in a form that Arrow reads: a local path, or the content of a remote file in memory."""
    if not isinstance(path, RemotePath):
        return path
    import pyarrow as pa

    return pa.BufferReader(path.read_bytes())


class Output:
    """A file that Arrow writes. A remote one is written to a temporary local file and uploaded by `close`."""

    def __init__(self, path: StorePath) -> None:
        self._path = path
        self._spooled: IO[bytes] | None = None
        if isinstance(path, RemotePath):
            self._spooled = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`

    @property
    def target(self) -> Any:
        """What Arrow writes to."""
        return self._path if self._spooled is None else self._spooled

    def close(self, *, keep: bool = True) -> None:
        """Make the file complete; removes it unless `keep`. Arrow must have closed its writer."""
        if self._spooled is None:
            if not keep:
                self._path.unlink(missing_ok=True)
            return
        with self._spooled as file:
            if keep:
                file.seek(0)
                cast("RemotePath", self._path).put(cast("Any", file))
