"""Paths in object stores: S3 and what speaks its protocol, Azure, Google Cloud Storage.

An object store has no folders and renames nothing. It stores an object completely or not at all, and refuses to create
one that exists (`If-None-Match: *`), which is what commits and fences are made of here.

Credentials and endpoint come from Spark's settings for Hadoop (`spark.hadoop.fs.s3a.access.key` ...), and otherwise
from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` ...) and from the machine's role, as for every program.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, BinaryIO, Final, Self

from lanemq.files.paths import RemotePath
from lanemq.model.environment import install_extra
from lanemq.model.errors import StorageError, UsageError

_S3A: Final = {
    "access.key": "access_key_id",
    "secret.key": "secret_access_key",
    "session.token": "session_token",
    "endpoint": "endpoint",
    "endpoint.region": "region",
}
"""Hadoop's settings for S3, after `fs.s3a.`, and their names in `obstore`."""


class ObjectPath(RemotePath):
    """An object, or the objects whose keys begin with this one and a slash."""

    __slots__ = ()

    def exists(self) -> bool:
        try:
            with _reached(self):
                self._store.head(self.key)
        except FileNotFoundError:
            return self.is_dir()
        return True

    def is_dir(self) -> bool:
        return next(self.iterdir(), None) is not None

    def iterdir(self) -> Iterator[Self]:
        with _reached(self):
            listing = self._store.list_with_delimiter(self.key)
        keys = [*(each["path"] for each in listing["objects"]), *listing["common_prefixes"]]
        for key in keys:
            # Hadoop marks an empty folder by an object with the folder's name.
            if key.strip("/") != self.key:
                yield self / key.strip("/").rpartition("/")[2]

    def read_bytes(self) -> bytes:
        with _reached(self):
            return bytes(self._store.get(self.key).bytes())

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with _reached(self):
                self._store.delete(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: an object store has no folders."""

    def put(self, content: bytes | BinaryIO) -> None:
        with _reached(self):
            self._store.put(self.key, content)

    def create(self, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with _reached(self):
            try:
                self._store.put(self.key, content, mode="create")
            except AlreadyExistsError:
                return self._has(content)
        return True

    def move(self, target: Self) -> None:
        """Copy the object inside the store, then delete it."""
        with _reached(self):
            self._store.copy(self.key, target.key)
            self._store.delete(self.key)

    def files_below(self) -> Iterator[tuple[Self, int]]:
        with _reached(self):
            objects = [each for part in self._store.list(self.key) for each in part]
        for each in objects:
            if not each["path"].endswith("/"):
                yield replace(self, key=each["path"]), each["size"]

    def remove_files(self, paths: Sequence[Self]) -> None:
        if paths:
            with _reached(self):
                self._store.delete([path.key for path in paths])

    def remove_tree(self) -> None:
        with _reached(self):
            keys = [each["path"] for part in self._store.list(self.key) for each in part]
            self._store.delete(keys or self.key)

    @property
    def _store(self) -> Any:
        return _store(self.root, self.settings)


@contextmanager
def _reached(path: ObjectPath) -> Iterator[None]:
    """Turn errors of the store into `StorageError`. The client has repeated the request for minutes by then."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise StorageError(
            f"{path}: the store refused or did not answer: {str(error).splitlines()[0]}; check its address and the "
            f"credentials (settings spark.hadoop.fs.s3a.…, or the environment)"
        ) from error


def store_config(root: str, settings: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], dict[str, bool]]:
    """Configuration and client options for `obstore`, from Spark's settings for Hadoop and the environment."""
    config: dict[str, str] = {}
    if not root.startswith(("s3://", "s3a://")):
        return config, {}
    given = {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in settings}
    bucket = root.partition("://")[2]
    for name, own in _S3A.items():
        value = given.get(f"bucket.{bucket}.{name}") or given.get(name)
        if value:
            config[own] = value
    if given.get("path.style.access", "").lower() == "true":
        config["virtual_hosted_style_request"] = "false"
    endpoint = config.get("endpoint", "")
    if endpoint and "://" not in endpoint:
        plain = given.get("connection.ssl.enabled", "").lower() == "false"
        config["endpoint"] = f"{'http' if plain else 'https'}://{endpoint}"
    endpoint = config.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    return config, {"allow_http": True} if endpoint.startswith("http://") else {}


_opening = threading.Lock()


def _store(root: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """The store of an address: the same one for all threads, also for those that ask for it first at the same time."""
    with _opening:
        return _cached_store(root, settings)


@lru_cache(maxsize=16)
def _cached_store(root: str, settings: tuple[tuple[str, str], ...]) -> Any:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise UsageError(f"{root} needs the package obstore: {install_extra('objects')}") from error
    config, client = store_config(root, settings)
    options: Any = {"config": config or None, "client_options": client or None}
    return from_url(root, **options)
