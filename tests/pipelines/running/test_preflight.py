"""What a pipeline needs from the machine is reported before Spark is started."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.running.test_program import declared

from lanemq.model.environment import install_extra
from lanemq.model.errors import UsageError
from lanemq.pipelines import IcebergSink, ParquetSink
from lanemq.pipelines.running import preflight, program
from lanemq.pipelines.running.preflight import (
    check_archives,
    check_java,
    check_packages,
    jars_to_download,
    missing_needs,
)


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    there: Callable[[str], Any] = preflight.find_spec
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name in names else there(name))


def fake_java(folder: Path, says: str) -> None:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


def test_all_missing_packages_are_named_with_their_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pandas", "pyiceberg", "obstore")
    sink = IcebergSink("shop.orders", warehouse=tmp_path / "tables")
    pipeline = replace(declared(tmp_path), sink=sink, checkpoint="s3a://bucket/orders")
    with pytest.raises(
        UsageError, match="pipeline orders: Spark needs the package pandas, which is not installed"
    ) as e:
        check_packages(pipeline)
    for extra in ("spark", "iceberg", "objects"):
        assert install_extra(extra) in str(e.value)


def test_a_run_is_refused_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pandas")
    monkeypatch.setattr(program, "check_java", lambda: pytest.fail("Spark must not be started"))
    with pytest.raises(UsageError, match="package pandas"):
        program.run(declared(tmp_path))


def test_a_sink_of_your_own_names_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnSink(ParquetSink):
        packages: Mapping[str, str] = {"no_such_package": ""}

    monkeypatch.setattr(preflight, "check_java", lambda: None)
    pipeline = replace(declared(tmp_path), dead_letters=OwnSink(tmp_path / "dead"))
    (sentence,) = missing_needs([pipeline, pipeline])
    assert sentence.endswith("needs the package no_such_package, which is not installed: install no_such_package")


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_292"', 8)]
)
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: int) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=rf"Java 17 or newer, and .*/bin/java is Java {version}: install a newer one"):
        check_java()


@pytest.mark.parametrize("says", ['openjdk version "17.0.9" 2023-10-17', 'openjdk version "25" 2025-09-16', "strange"])
def test_a_newer_java_and_one_that_does_not_say_its_version_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()


def test_jars_that_spark_has_downloaded_before_are_not_named(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "org.example_client-1.2.jar").touch()
    settings = {
        "spark.jars.ivy": str(tmp_path),
        "spark.jars.packages": "org.example:client:1.2, org.example:client:1.3,org.example:other:1.2",
    }
    assert jars_to_download(settings) == ["org.example:client:1.3", "org.example:other:1.2"]
    assert jars_to_download({**settings, "spark.jars.packages": ""}) == []


def test_an_archive_that_is_not_there_is_refused_before_spark_is_started(tmp_path: Path) -> None:
    there = tmp_path / "pack.zip"
    there.touch()
    check_archives({"spark.archives": f"{there}#pack,s3a://lanes/other.zip#other"})
    check_archives({})
    with pytest.raises(UsageError, match=r"gone\.zip, which does not exist: write it with `lanemq spark pack"):
        check_archives({"spark.archives": f"{there}#pack, {tmp_path}/gone.zip#gone"})
