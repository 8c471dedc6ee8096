"""Upkeep of an Iceberg table: small files become larger ones, and what no snapshot needs is deleted.

A compaction is a commit like any other, made against the snapshot whose files it read. If a batch was committed in
between, the catalog refuses it and the next upkeep tries again; so no row is lost or doubled. Files are deleted only
after the commit that removed their last snapshot.
"""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Snapshot

from lanemq.model.units import Millis
from lanemq.pipelines.sinks.iceberg_table import IcebergTable, named
from lanemq.pipelines.sinks.versioned_table import small_groups

log = logging.getLogger(__name__)

KEEP_PROPERTY: Final = "history.expire.max-snapshot-age-ms"
KEEP_MILLIS: Final = 5 * 24 * 3600 * 1000


def compact(table: IcebergTable) -> int:
    """Replace the small files of each partition by larger ones, and return how many were replaced."""
    change, replaced = table.change(), 0
    for group in small_groups(table.files(), _partition, lambda file: file.file.file_size_in_bytes):
        for file in group:
            change.remove(file)
        change.add(table.read(group))
        replaced += len(group)
    if replaced:
        change.stage("", {}, {})
        change.commit()
    return replaced


def _partition(file: FileScanTask) -> tuple[int | None, str]:
    return file.file.spec_id, repr(file.file.partition)


def vacuum(table: IcebergTable, keep: Millis | None, wall: Millis) -> int:
    """Remove old snapshots and the files that only they had; returns the number of deleted files."""
    if keep is None:
        keep = Millis(int(table.properties.get(KEEP_PROPERTY, KEEP_MILLIS)))
    handle = table.handle
    with named(f"snapshots of {table.name}"):
        before = {snapshot.snapshot_id: snapshot for snapshot in handle.snapshots()}
        handle.maintenance.expire_snapshots().older_than(datetime.fromtimestamp((wall - keep) / 1000, UTC)).commit()
        handle.refresh()
        left = {snapshot.snapshot_id for snapshot in handle.snapshots()}
        gone = [snapshot for number, snapshot in before.items() if number not in left]
        if not gone:
            return 0
        needed = _files(table, handle.snapshots())
        unneeded = _files(table, gone) - needed
    for location in unneeded:
        try:
            table.delete_file(location)
        except OSError as error:
            log.warning("table %s: %s was not deleted: %s", table.name, location, error)
    return len(unneeded)


def _files(table: IcebergTable, snapshots: Iterable[Snapshot]) -> set[str]:
    """Everything that these snapshots consist of: lists, manifests and data files."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.handle.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.handle.io, discard_deleted=True)
                found.update(entry.data_file.file_path for entry in entries)
    return found
