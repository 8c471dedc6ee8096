"""Every form of the port does the same."""

import errno
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanemq.files import (
    Output,
    StorePath,
    arrow_source,
    copy,
    create,
    files_below,
    is_address,
    locate,
    move,
    objects,
    remove_files,
    remove_tree,
    write_durably,
)
from lanemq.files.objects import ObjectPath, store_config
from lanemq.model.errors import InvalidOption, StorageError


def test_a_file_is_written_replaced_read_and_removed(root: StorePath) -> None:
    path = root / "state" / "orders%2Fbroker a#0" / "1.json"
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        path.read_bytes()
    write_durably(path, b"one")
    write_durably(path, b"two")
    assert (path.read_bytes(), path.exists(), path.is_dir()) == (b"two", True, False)
    assert (path.name, path.stem, path.suffix, path.parent.name) == ("1.json", "1", ".json", "orders%2Fbroker a#0")
    assert [each.name for each in (root / "state").iterdir()] == ["orders%2Fbroker a#0"]
    assert (root / "state").is_dir()
    assert [each.name for each in path.parent.glob("*.json")] == ["1.json"], "no unfinished file is left"
    assert pickle.loads(pickle.dumps(path)) == path  # noqa: S301
    path.unlink()
    path.unlink(missing_ok=True)
    assert not path.exists()


def test_a_folder_is_removed_with_everything_in_it(root: StorePath) -> None:
    for name in ("a", "b"):
        write_durably(root / "work" / name / "file", b"x")
    write_durably(root / "workshop", b"x")
    remove_tree(root / "work")
    remove_tree(root / "work")
    assert not (root / "work").exists()
    assert (root / "workshop").exists(), "its name only begins in the same way"
    assert list((root / "missing").glob("*")) == []


def test_one_of_many_creates_a_file(root: StorePath) -> None:
    path = root / "epochs" / "1"
    root.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: create(path, str(number).encode()), range(8)))
    assert sum(created) == 1
    assert path.read_bytes() == str(created.index(True)).encode()


def test_a_link_whose_answer_was_lost_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system repeats the request, and the server answers that the file exists."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr("os.link", twice)
    assert create(tmp_path / "1", b"one")
    assert not create(tmp_path / "1", b"one"), "another writer with the same content has not created it"


def test_a_file_system_without_links_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(StorageError, match=r"its file system has no hard links .*choose a folder on another one"):
        create(tmp_path / "1", b"one")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_creation_whose_file_is_removed_at_that_moment_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = ObjectPath("memory://", uuid4().hex)
    assert create(path, b"one")

    def removed(path: ObjectPath) -> bytes:
        raise FileNotFoundError(str(path))

    monkeypatch.setattr(ObjectPath, "read_bytes", removed)
    assert not create(path, b"two")


def test_the_names_of_new_folders_are_on_the_disk_before_a_file_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("lanemq.files.operations.sync", lambda path: synced.append(path.name))
    write_durably(tmp_path / "lanemq" / "log" / "1", b"one")
    assert synced == [tmp_path.name, "lanemq", "log"]
    write_durably(tmp_path / "lanemq" / "log" / "2", b"two")
    assert synced[3:] == ["log"]


def test_arrow_files_are_written_read_and_copied(root: StorePath) -> None:
    table = pa.table({"n": [1, 2, 3]})
    root.mkdir(parents=True, exist_ok=True)
    output = Output(root / "rows.parquet")
    with pq.ParquetWriter(output.target, table.schema) as writer:
        writer.write_table(table)
    output.close()
    copy(root / "rows.parquet", root / "copy.parquet", link=True)
    assert pq.read_table(arrow_source(root / "copy.parquet")).equals(table)
    left_out = Output(root / "half.parquet")
    pq.write_table(table, left_out.target)
    left_out.close(keep=False)
    assert not (root / "half.parquet").exists()


def test_a_file_is_moved_to_a_folder_that_is_made_and_replaces_a_file_there(root: StorePath) -> None:
    source, target = root / "staged" / "1", root / "day=1" / "part 1%.parquet"
    write_durably(source, b"new")
    write_durably(root / "there", b"old")
    move(source, target)
    assert (target.read_bytes(), source.exists()) == (b"new", False)
    move(target, root / "there")
    assert ((root / "there").read_bytes(), target.exists()) == (b"new", False)


def test_a_file_that_was_moved_before_is_not_found_and_its_target_stays(root: StorePath) -> None:
    """Two runs may complete one change; the later one must not damage what the first did."""
    write_durably(root / "staged" / "1", b"rows")
    move(root / "staged" / "1", root / "placed")
    with pytest.raises(FileNotFoundError):
        move(root / "staged" / "1", root / "placed")
    assert (root / "placed").read_bytes() == b"rows"


def test_files_below_a_folder_are_listed_with_their_bytes_and_without_hidden_ones(root: StorePath) -> None:
    for name in ("top", "day=1/a b%", "day=1/hour=2/c", "_lanemq/change.json", "day=1/.half", "day=1/_x/y"):
        path = root / "data"
        for part in name.split("/"):
            path = path / part
        write_durably(path, b"x" * len(name))
    write_durably(root / "database", b"x")
    assert files_below(root / "data") == {name: len(name) for name in ("top", "day=1/a b%", "day=1/hour=2/c")}
    assert files_below(root / "missing") == {}


def test_many_files_are_removed_and_missing_ones_passed_over(root: StorePath) -> None:
    paths = [root / "files" / str(number) for number in range(12)]
    for path in paths[::2]:
        write_durably(path, b"x")
    write_durably(root / "files" / "kept", b"x")
    remove_files(paths)
    remove_files(paths)
    remove_files([])
    assert list(files_below(root / "files")) == ["kept"]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("s3a://bucket/a/b/", "s3a://bucket/a/b"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("hdfs://host:8020/a", "hdfs://host:8020/a"),
        ("hdfs:///a", "hdfs:///a"),
        ("file:/data/my%20orders", "/data/my orders"),
        ("file:///data/orders", "/data/orders"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_what_a_user_writes_is_found(place: str, expected: str) -> None:
    assert str(locate(place)) == expected
    assert is_address(place) == (":/" in place)


def test_a_relative_path_is_made_absolute_and_a_path_stays_itself(tmp_path: Path) -> None:
    assert locate("orders") == Path("orders").absolute()
    assert locate(tmp_path) == tmp_path
    remote = ObjectPath("memory://", "a")
    assert locate(remote) is remote


@pytest.mark.parametrize("place", ["ftp://host/a", "s3a:///a", "s3a:/a"])
def test_an_address_that_no_form_understands_is_refused(place: str) -> None:
    with pytest.raises(InvalidOption, match=r"LaneMQ does not know ftp|names no bucket"):
        locate(place)


def test_settings_of_spark_say_how_s3_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    begin = "spark.hadoop.fs.s3a."
    settings = {
        f"{begin}endpoint": "minio:9000",
        f"{begin}connection.ssl.enabled": "false",
        f"{begin}path.style.access": "true",
        f"{begin}access.key": "everyone",
        f"{begin}bucket.orders.access.key": "orders",
        "spark.sql.shuffle.partitions": "8",
    }
    path = locate("s3a://orders/a", settings)
    assert isinstance(path, ObjectPath)
    assert store_config(path.root, path.settings) == (
        {"access_key_id": "orders", "endpoint": "http://minio:9000", "virtual_hosted_style_request": "false"},
        {"allow_http": True},
    )
    assert store_config("gs://orders", path.settings) == ({}, {})


def test_an_error_of_the_store_says_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from obstore.exceptions import PermissionDeniedError

    def refuses(*_: object, **__: object) -> None:
        raise PermissionDeniedError("403 Forbidden")

    path = ObjectPath("memory://", "refused")
    for name in ("get", "head", "put", "delete", "list_with_delimiter"):
        monkeypatch.setattr(type(path._store), name, refuses)
    for change in (path.read_bytes, path.exists, path.unlink, lambda: path.put(b"x"), lambda: path.create(b"x")):
        with pytest.raises(StorageError, match=r"memory:///refused: .* 403 Forbidden; check its address"):
            change()


def test_threads_that_open_a_store_at_the_same_time_get_the_same_one() -> None:
    settings, together = (("spark.hadoop.test", uuid4().hex),), threading.Barrier(8)

    def opened(_: int) -> object:
        together.wait()
        return objects._store("memory://", settings)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(opened, range(8))))) == 1
