"""Files of pipelines on any file system: local disks and shared folders, HDFS, and object stores.

`locate` turns what a user writes into a path. A local path is a `pathlib.Path`; `hdfs` and `objects` have the other
forms. `operations` has what differs between them: durable writes, creating a file that must not be there, Arrow files.
"""

from lanemq.files.locate import is_address, locate
from lanemq.files.operations import (
    Output,
    arrow_source,
    copy,
    create,
    files_below,
    move,
    read_json,
    remove_files,
    remove_tree,
    sync,
    write_durably,
    write_json,
)
from lanemq.files.paths import RemotePath, StorePath

__all__ = [
    "Output",
    "RemotePath",
    "StorePath",
    "arrow_source",
    "copy",
    "create",
    "files_below",
    "is_address",
    "locate",
    "move",
    "read_json",
    "remove_files",
    "remove_tree",
    "sync",
    "write_durably",
    "write_json",
]
