"""Settings with which Spark starts in a third of the time in tests, where its JVMs live for seconds.

- The JVM uses its first compiler only, and one garbage collector thread.
- `python -m tests.quick_spark` writes the classes of a small job to an archive, which later JVMs map instead of reading
  and checking 200 jars. Java does without the archive if it is not there or belongs to another Java or Spark.
- `SPARK_HOME` has no `python/lib/pyspark.zip`. Spark puts it first on the path of its Python processes, and Python
  compiles the modules of an archive at every start: 0.7 s of CPU time instead of 0.15 s, for about ten processes of a
  streaming query. On a busy machine this may take longer than the 10 s that Spark allows, which no setting changes.
  Without it they import the installed pyspark, which is the same code.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "var" / "spark"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For drivers and executors."""
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Java says nothing about classes that an archive cannot hold."""

JOB = """
from pyspark.sql.functions import pandas_udf, udf
from lanemq.spark import recommended, register
from lanemq.testing.embedded import EmbeddedBroker
from lanemq import Producer
import sys
quick = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
builder = recommended().master("local[2]").config("spark.log.level", "OFF")
for name, value in quick.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
register(session)
with EmbeddedBroker() as broker:
    with Producer(broker.address) as producer:
        for number in range(10):
            producer.send("orders", {"n": number}, key=str(number))
    options = {"servers": broker.address, "topic": "orders", "startingOffsets": "earliest"}
    stream = session.readStream.format("lanemq").options(**options).load()

    def apply(rows, batch):
        rows = rows.repartition(2, "key").cache()
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("key").count().collect()
        rows.write.mode("append").parquet(sys.argv[1] + "/table")

    query = stream.writeStream.foreachBatch(apply).option("checkpointLocation", sys.argv[1] + "/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
session.read.parquet(sys.argv[1] + "/table").count()
java = session.sparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait()
"""


def environment() -> dict[str, str]:
    """Variables for the driver and its children; none if Spark is not installed."""
    installed = _installed()
    if installed is None:
        return {}
    home, conf = FOLDER / "home", FOLDER / "conf"
    for folder in (home, conf):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "jars"):
        link = home / name
        if not link.exists():  # also for a link to a Spark that was removed
            with contextlib.suppress(FileNotFoundError, FileExistsError):  # another test process was faster
                if link.is_symlink():
                    link.unlink()
                link.symlink_to(installed / name)
    archive = _archive(installed)
    use = f" -XX:SharedArchiveFile={archive} {QUIET}" if archive.exists() else ""
    # An archive needs the classpath to be free of files beside jars, so the folder for settings is empty.
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS + use,
    }


def write_archive() -> None:
    """Run the job once and let its JVM write the archive when it ends."""
    installed = _installed()
    if (
        installed is None
        or shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}") is None
    ):
        return
    archive = _archive(installed)
    if archive.exists():
        return
    settings = os.environ | environment() | {"PYSPARK_PYTHON": sys.executable}
    for old in FOLDER.glob("*.jsa*"):
        old.unlink(missing_ok=True)
    work, new = FOLDER / f"job-{os.getpid()}", archive.with_suffix(f".jsa-{os.getpid()}")
    work.mkdir()
    settings["SPARK_SUBMIT_OPTS"] = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={new} {QUIET}"
    with (FOLDER / "archive.log").open("wb") as log:
        subprocess.run([sys.executable, "-c", JOB, str(work)], env=settings, stdout=log, stderr=log, check=False)
    shutil.rmtree(work)
    with contextlib.suppress(FileNotFoundError):  # tests take longer without it, and pass
        new.rename(archive)


def _installed() -> Path | None:
    found = importlib.util.find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _archive(installed: Path) -> Path:
    """Named for what it depends on."""
    jars = installed / "jars"
    parts = [os.environ.get("JAVA_HOME", ""), str(jars), str(jars.stat().st_mtime_ns)]
    return FOLDER / f"classes-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.jsa"


if __name__ == "__main__":
    write_archive()
