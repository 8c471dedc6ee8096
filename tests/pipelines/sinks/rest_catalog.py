"""A real REST catalog for tests: the server of the Iceberg project (Maven), with SQLite and a folder behind it."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.maven import jars
from tests.files.servers import wait_for

JAVA = Path(__file__).with_name("java")
SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


@contextmanager
def rest_catalog_server(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the properties of the catalog, as `IcebergSink(catalog=...)` takes them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    settings = {
        "CATALOG_WAREHOUSE": (folder / "tables").as_uri(),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_REST_PORT": str(port),
    }
    command = [java, "-cp", f"{jars(JAVA / 'pom-iceberg-rest.xml')}/*", SERVER]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}/v1/config", process, folder / "log")
        yield {"type": "rest", "uri": f"http://127.0.0.1:{port}"}
    finally:
        process.terminate()
        process.wait(30)
