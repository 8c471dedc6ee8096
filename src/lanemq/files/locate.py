"""From what a user writes, `s3a://bucket/orders`, `hdfs://host/orders`, `file:/data/orders` or a plain path, to a path.

A module that a form needs (`obstore`, `hdfs_native`) is imported when the form is used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from lanemq.files.paths import StorePath
from lanemq.model.errors import InvalidOption

HDFS_SCHEMES: Final = ("hdfs", "viewfs")
OBJECT_SCHEMES: Final = ("s3", "s3a", "abfs", "abfss", "az", "gs")


def is_address(place: object) -> bool:
    """Whether this names a place by an address instead of a local path."""
    scheme, colon, _ = str(place).partition(":")
    return (bool(colon) and scheme.lower() in ("file", *HDFS_SCHEMES, *OBJECT_SCHEMES)) or "://" in str(place)


def locate(place: object, settings: Mapping[str, str] | None = None) -> StorePath:
    """The path of a file or folder; `InvalidOption` for an address that no form understands.

    `settings`: settings of Spark; those that begin with `spark.hadoop.fs.` say how a store is reached.
    """
    from lanemq.files.paths import RemotePath

    if isinstance(place, RemotePath):
        return place
    text = str(place)
    if not is_address(text):
        return Path(text).absolute()
    parts = urlsplit(text)
    scheme, key = parts.scheme.lower(), parts.path.strip("/")
    if scheme == "file":
        return Path("/" + unquote(parts.path).lstrip("/"))
    own = tuple(sorted((name, value) for name, value in (settings or {}).items() if name.startswith("spark.hadoop.")))
    if scheme in HDFS_SCHEMES:
        from lanemq.files.hdfs import HdfsPath

        return HdfsPath(f"{scheme}://{parts.netloc}", key, own)
    if scheme in OBJECT_SCHEMES:
        if not parts.netloc:
            raise InvalidOption(f"{text!r} names no bucket: write it like {scheme}://bucket/folder")
        from lanemq.files.objects import ObjectPath

        return ObjectPath(f"{scheme}://{parts.netloc}", key, own)
    raise InvalidOption(
        f"{text!r}: LaneMQ does not know {scheme}://. Use a folder, or an address with hdfs, s3a, abfss or gs"
    )
