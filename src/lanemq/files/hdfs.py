"""Paths on HDFS, through its own protocol: no JVM is needed in Spark's Python workers and in commands.

HDFS renames a file in one step, which fails if the target exists. So a file is complete when it is there, and if
several writers create it, one of them succeeds.

Connection, high availability and Kerberos come from Hadoop's configuration in HADOOP_CONF_DIR, and from settings of
Spark that begin with `spark.hadoop.`.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from lanemq.files.paths import RemotePath
from lanemq.model.environment import install_extra
from lanemq.model.errors import UsageError

if TYPE_CHECKING:
    from hdfs_native import Client

_CHUNK: Final = 4 << 20


class HdfsPath(RemotePath):
    """A file or folder on HDFS."""

    __slots__ = ()

    def exists(self) -> bool:
        try:
            self._client.get_file_info(self.full)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        try:
            return bool(self._client.get_file_info(self.full).isdir)
        except FileNotFoundError:
            return False

    def iterdir(self) -> Iterator[Self]:
        for status in list(self._client.list_status(self.full)):
            yield self / status.path.rpartition("/")[2]

    def read_bytes(self) -> bytes:
        return bytes(self._client.read(self.full).read())

    def unlink(self, missing_ok: bool = False) -> None:
        if not self._client.delete(self.full) and not missing_ok:
            raise FileNotFoundError(str(self))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if not exist_ok and self.exists():
            raise FileExistsError(str(self))
        self._client.mkdirs(self.full, create_parent=True)

    def put(self, content: bytes | BinaryIO) -> None:
        self.parent.mkdir(exist_ok=True)
        self._write_and_rename(content, overwrite=True)

    def create(self, content: bytes) -> bool:
        self.parent.mkdir(exist_ok=True)
        try:
            self._write_and_rename(content, overwrite=False)
        except FileExistsError:
            return self._has(content)
        return True

    def move(self, target: Self) -> None:
        target.parent.mkdir(exist_ok=True)
        self._client.rename(self.full, target.full, overwrite=True)

    def files_below(self) -> Iterator[tuple[Self, int]]:
        try:
            statuses = list(self._client.list_status(self.full, recursive=True))
        except FileNotFoundError:
            return
        for each in statuses:
            if not each.isdir:
                yield replace(self, key=each.path.strip("/")), each.length

    def remove_tree(self) -> None:
        self._client.delete(self.full, recursive=True)

    def _write_and_rename(self, content: bytes | BinaryIO, *, overwrite: bool) -> None:
        own = f"{self.parent.full}/.{self.name}.{os.getpid()}-{os.urandom(4).hex()}"
        try:
            self._write(own, content)
            self._client.rename(own, self.full, overwrite=overwrite)
        except BaseException:
            self._client.delete(own)
            raise

    def _write(self, name: str, content: bytes | BinaryIO) -> None:
        """Write a new file; FileNotFoundError if its folder is missing."""
        from hdfs_native import WriteOptions

        with self._client.create(name, WriteOptions(create_parent=False)) as file:
            if isinstance(content, bytes):
                file.write(content)
                return
            while chunk := content.read(_CHUNK):
                file.write(chunk)

    @property
    def full(self) -> str:
        """The path as HDFS knows it."""
        return f"/{self.key}"

    @property
    def _client(self) -> "Client":
        return _client(self.root, self.settings)


@lru_cache(maxsize=16)
def _client(root: str, settings: tuple[tuple[str, str], ...]) -> "Client":
    try:
        from hdfs_native import Client
    except ImportError as error:
        raise UsageError(f"{root} needs the package hdfs-native: {install_extra('hdfs')}") from error
    return Client(root, config={name.removeprefix("spark.hadoop."): value for name, value in settings})
