"""Real stores for tests: HDFS in one process (Maven), and a server that speaks S3's protocol (moto, from PyPI)."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

from interop.maven import jars

JAVA = Path(__file__).with_name("java")
START_SECONDS = 300
BUCKET = "lanes"


@contextmanager
def mini_hdfs(folder: Path) -> Iterator[str]:
    """HDFS with one data node; yields its address, such as `hdfs://localhost:8020`."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    command = [java, "-cp", f"{jars(JAVA / 'pom-hdfs.xml')}/*", str(JAVA / "MiniHdfs.java"), str(folder / "hdfs")]
    with (folder / "hdfs.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("ready "):
                yield line.split()[1]
                return
        raise AssertionError((folder / "hdfs.log").read_text()[-3000:])
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """An S3 server with one bucket, `lanes`; yields the variables with which clients reach it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(f"{url}/moto-api/", process, folder / "s3.log")
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
        yield {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        process.terminate()
        process.wait(30)


def s3a_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """The settings with which Spark reaches the S3 server."""
    return {
        "spark.jars": ",".join(map(str, sorted(jars(JAVA / "pom-s3a.xml").glob("*.jar")))),
        "spark.hadoop.fs.s3a.endpoint": variables["AWS_ENDPOINT_URL"],
        "spark.hadoop.fs.s3a.endpoint.region": variables["AWS_REGION"],
        "spark.hadoop.fs.s3a.access.key": variables["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": variables["AWS_SECRET_ACCESS_KEY"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server that was just started answers."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except (URLError, ConnectionError):
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]  # noqa: PT018
            time.sleep(0.05)
