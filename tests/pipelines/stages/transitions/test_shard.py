"""State on disk: what is read is what was written, or an error."""

from pathlib import Path

import pytest

from lanemq.model.errors import StateLost
from lanemq.pipelines.batches import NUMBERS_PER_BATCH
from lanemq.pipelines.stages.transitions.shard import KEPT_BATCHES, Change, Meta, Shard, ShardCache, ShardFiles, Version


@pytest.fixture
def files(tmp_path: Path) -> ShardFiles:
    return ShardFiles(tmp_path, "query", "orders/a/0")


def change(gone: tuple[str, ...] = (), **lanes: bytes) -> Change:
    return Change(Meta(), lanes, list(gone))


def chain(files: ShardFiles, *changes: Change) -> list[Version]:
    versions = [Version()]
    for number, each in enumerate(changes):
        versions.append(files.write_change(number * 10, versions[-1], each))
    return versions[1:]


def _units(files: ShardFiles) -> list[str]:
    return [path.name.partition("-")[0] for path in files.folder.iterdir()]


def test_a_version_is_its_changes_in_order(files: ShardFiles) -> None:
    versions = chain(files, change(a=b"1", b=b"1"), change(a=b"2"), change(("b",), c=b"3"))
    assert files.load(versions[0]).lanes == {"a": b"1", "b": b"1"}
    assert files.load(versions[1]).lanes == {"a": b"2", "b": b"1"}
    assert files.load(versions[2]).lanes == {"a": b"2", "c": b"3"}


def test_a_snapshot_replaces_everything_before_it(files: ShardFiles) -> None:
    versions = chain(files, change(a=b"1"), change(a=b"2"))
    files.write_snapshot(files.load(versions[1]))
    last = files.write_change(20, versions[1], change(b=b"3"))
    (files.folder / ".0-ab.on--1-.change.77-abcd").touch()  # a crash left it
    files.remove_before(10)
    assert sorted(_units(files)) == ["10", "20"]
    assert files.load(last).lanes == {"a": b"2", "b": b"3"}
    assert files.load(versions[1]).lanes == {"a": b"2"}


def test_a_cached_shard_reads_only_what_it_lacks(files: ShardFiles) -> None:
    versions = chain(files, change(a=b"1"), change(b=b"2"), change(c=b"3"))
    shard = files.load(versions[1])
    next(files.folder.glob("0-*.change")).unlink()
    assert files.catch_up(shard, versions[2])
    assert shard.lanes == {"a": b"1", "b": b"2", "c": b"3"}


def test_a_cached_shard_older_than_the_remaining_changes_reads_the_snapshot(files: ShardFiles) -> None:
    versions = chain(files, change(a=b"1"), change(b=b"2"))
    old = files.load(versions[0])
    old.lanes["stale"] = b"x"
    files.write_snapshot(files.load(versions[1]))
    files.remove_before(10)
    assert files.catch_up(old, versions[1])
    assert old.lanes == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("at", [0, 1, 8, 12, 23, 24, 30, -1])
def test_a_truncated_file_is_refused(files: ShardFiles, at: int) -> None:
    (version,) = chain(files, change(a=b"1" * 100))
    path = next(files.folder.iterdir())
    path.write_bytes(path.read_bytes()[:at])
    with pytest.raises(StateLost, match="damaged"):
        files.load(version)


def test_a_folder_in_the_place_of_a_file_is_refused(files: ShardFiles) -> None:
    (version,) = chain(files, change(a=b"1"))
    path = next(files.folder.iterdir())
    path.unlink()
    path.mkdir()
    with pytest.raises(StateLost, match="damaged"):
        files.load(version)


def test_a_flipped_bit_in_any_byte_is_noticed(files: ShardFiles) -> None:
    (version,) = chain(files, change(a=b"1"))
    path = next(files.folder.iterdir())
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(StateLost):
            files.load(version)


def test_a_missing_change_file_is_noticed(files: ShardFiles) -> None:
    versions = chain(files, change(a=b"1"), change(b=b"2"), change(c=b"3"))
    next(files.folder.glob("10-*.change")).unlink()
    with pytest.raises(StateLost, match="nothing about unit 10"):
        files.load(versions[2])


def test_a_file_of_another_query_is_refused(files: ShardFiles) -> None:
    (version,) = chain(files, change(a=b"1"))
    with pytest.raises(StateLost, match="checkpoint of its own"):
        ShardFiles(files.stage_folder, "another", files.shard).load(version)


@pytest.mark.parametrize("snapshots", [False, True])
def test_an_attempt_that_ends_late_replaces_nothing(files: ShardFiles, snapshots: bool) -> None:
    """Speculation, or an executor that Spark gave up but still runs. The manifest names the attempt that counts."""
    (counted,) = chain(files, change(a=b"1"))
    if snapshots:
        files.write_snapshot(files.load(counted))
    late = files.write_change(0, Version(), change(a=b"2"))
    if snapshots:
        files.write_snapshot(files.load(late))
    assert files.load(counted).lanes == {"a": b"1"}
    assert files.load(files.write_change(10, counted, change(b=b"3"))).lanes == {"a": b"1", "b": b"3"}


def test_a_file_under_the_name_of_another_attempt_is_refused(files: ShardFiles) -> None:
    (counted,) = chain(files, change(a=b"1"))
    kept = next(files.folder.iterdir())
    files.write_change(0, Version(), change(a=b"2"))
    next(path for path in files.folder.iterdir() if path != kept).rename(kept)
    with pytest.raises(StateLost, match="another program changed its files"):
        files.load(counted)


@pytest.mark.parametrize("name", [".nfs000000000123", "1.bak", "5-zz.snapshot", ".5", "notes"])
def test_files_with_other_names_are_left_alone(files: ShardFiles, name: str) -> None:
    (version,) = chain(files, change(a=b"1"))
    (files.folder / name).touch()
    assert files.load(version).lanes == {"a": b"1"}
    files.remove_before(100)
    assert [path.name for path in files.folder.iterdir()] == [name]


def test_the_same_change_written_twice_is_the_same_version(files: ShardFiles) -> None:
    first = files.write_change(0, Version(), change(a=b"1"))
    assert files.write_change(0, Version(), change(a=b"1")) == first


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_attempts_from_different_bases_are_not_mixed(files: ShardFiles, order: tuple[int, int]) -> None:
    versions = chain(files, change(a=b"1"), change(a=b"2"))
    first = files.write_change(99, versions[order[0]], change(b=b"1"))
    last = files.write_change(99, versions[order[1]], change(b=b"2"))
    assert files.load(last).lanes == {"a": b"12"[order[1] : order[1] + 1], "b": b"2"}
    assert files.load(first).lanes["b"] == b"1"
    files.write_snapshot(files.load(files.write_change(100, last, change())))
    files.remove_before(100)
    assert set(_units(files)) == {"100"}


def test_a_cached_shard_newer_than_wanted_is_read_again(files: ShardFiles) -> None:
    """A repeated batch must not start from its own change."""
    versions = chain(files, change(a=b"1"), change(a=b"2"))
    cache = ShardCache()
    cache.put(files, files.load(versions[1]), 100, 1_000_000)
    assert cache.take(files, versions[0]).lanes == {"a": b"1"}


def test_a_taken_shard_is_no_longer_in_the_cache(files: ShardFiles) -> None:
    """A unit that fails leaves no half-changed shard."""
    (version,) = chain(files, change(a=b"1"))
    cache = ShardCache()
    cache.put(files, files.load(version), 100, 1_000_000)
    cache.take(files, version).lanes["a"] = b"half done"
    assert cache.take(files, version).lanes == {"a": b"1"}


def test_a_cached_shard_of_another_attempt_is_read_again(files: ShardFiles) -> None:
    versions = chain(files, change(a=b"1"))
    cache = ShardCache()
    cache.put(files, files.load(versions[0]), 100, 1_000_000)
    counted = files.write_change(0, Version(), change(a=b"2"))
    assert cache.take(files, counted).lanes == {"a": b"2"}


def test_a_cached_shard_is_read_again_if_the_wanted_version_builds_on_another_attempt(files: ShardFiles) -> None:
    (first,) = chain(files, change(a=b"1"))
    cache = ShardCache()
    cache.put(files, files.load(first), 100, 1_000_000)
    counted = files.write_change(0, Version(), change(a=b"2"))
    assert cache.take(files, files.write_change(10, counted, change(b=b"3"))).lanes == {"a": b"2", "b": b"3"}


def test_the_cache_keeps_the_shards_used_last(tmp_path: Path) -> None:
    cache = ShardCache()
    for name in "abc":
        shard = Shard()
        shard.lanes = {str(number): b"" for number in range(4)}
        cache.put(ShardFiles(tmp_path, "q", name), shard, 8, 1_000_000)
    assert [key[2] for key in cache._shards] == ["b", "c"]


def test_the_cache_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    cache = ShardCache()
    for name in ("a", "b", "c"):
        shard = Shard()
        shard.lanes[name] = b"x" * 400
        assert shard.count_bytes(0) == 400
        cache.put(ShardFiles(tmp_path, "q", name), shard, 100, 1_000)
    assert len(cache) == 2


def test_a_cached_shard_that_other_workers_change_is_dropped_after_a_while(files: ShardFiles) -> None:
    """Spark gives shards to any worker, so each worker would keep all of them."""
    cache, version = ShardCache(), files.write_change(0, Version(), change(a=b"1"))
    newer = Version(5 * NUMBERS_PER_BATCH, "newer")
    for number, versions, kept in [
        (9 * NUMBERS_PER_BATCH, {files.shard: newer}, 1),
        (KEPT_BATCHES * NUMBERS_PER_BATCH, {files.shard: newer}, 1),
        ((KEPT_BATCHES + 1) * NUMBERS_PER_BATCH, {files.shard: version}, 1),
        ((KEPT_BATCHES + 1) * NUMBERS_PER_BATCH, {}, 1),
        ((KEPT_BATCHES + 1) * NUMBERS_PER_BATCH, {files.shard: newer}, 0),
    ]:
        cache.put(files, files.load(version), 100, 1_000_000)
        cache.drop_stale(files.stage_folder, files.query, number, versions)
        assert len(cache) == kept


def test_cached_shards_of_another_pipeline_are_kept(files: ShardFiles, tmp_path: Path) -> None:
    cache, version = ShardCache(), files.write_change(0, Version(), change(a=b"1"))
    cache.put(files, files.load(version), 100, 1_000_000)
    cache.drop_stale(tmp_path / "other", files.query, 99 * NUMBERS_PER_BATCH, {files.shard: Version(98, "newer")})
    assert len(cache) == 1
