"""Where the contenders come from: published packages, by name, into the cache that the interop suites use.

Nothing is installed into the project's environment or into the system. What cannot be had raises `UnavailableError`,
whose text says in one line what is missing and what to install.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from interop.maven import UnavailableError, cached, jars, run_tool, server_classpath

HERE = Path(__file__).parent
JAVA = HERE / "java"
REQUIREMENTS = HERE / "requirements.txt"
NATS = "github.com/nats-io/nats-server/v2@v2.10.22"
DEBIAN_REDIS = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")

__all__ = [
    "UnavailableError",
    "java_client",
    "kafka",
    "nats_server",
    "proxy",
    "python_clients",
    "redis_server",
    "rocketmq",
]


def python_clients() -> Path:
    """The interpreter of the environment with the Python clients of all contenders."""

    def fill(place: Path) -> None:
        venv.create(place, with_pip=True, symlinks=True)
        options = ("--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
        run_tool(str(place / "bin" / "python"), "-m", "pip", "install", *options, "--requirement", str(REQUIREMENTS))

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cached(f"peers-python{version}", [REQUIREMENTS], fill) / "bin" / "python"


def kafka() -> str:
    """The class path of the Kafka server."""
    _need_java()
    return f"{jars(JAVA / 'pom-kafka.xml')}/*"


def rocketmq() -> str:
    """The class path of RocketMQ's name server and broker."""
    _need_java()
    return server_classpath("5")


def proxy() -> str:
    """The class path of RocketMQ's gRPC proxy."""
    _need_java()
    return f"{jars(JAVA / 'pom-proxy.xml')}/*"


def java_client(name: str) -> str:
    """The class path of a Java client: its packages, and our program over them."""
    _need_java()
    pom = JAVA / f"pom-{name}.xml"
    packages = jars(pom)
    sources = [*sorted(JAVA.glob("*.java"))]
    wanted = [source for source in sources if source.stem.lower() in ("bench", f"{name}client")]

    def fill(place: Path) -> None:
        run_tool("javac", "-nowarn", "-Xlint:none", "-d", str(place), "-cp", f"{packages}/*", *map(str, wanted))

    return f"{cached(f'peers-{name}', [pom, *wanted], fill)}:{packages}/*"


def nats_server() -> Path:
    """The program `nats-server`: the installed one, else built from the Go proxy."""
    if found := shutil.which("nats-server"):
        return Path(found)
    if shutil.which("go") is None:
        raise UnavailableError("nats-server is not installed: install it, or Go to build it")

    def fill(place: Path) -> None:
        run_tool("go", "install", NATS, env={"GOBIN": str(place), "GOFLAGS": "-modcacherw"})

    return cached("peers-nats", [Path(__file__)], fill) / "nats-server"


def redis_server() -> tuple[Path, dict[str, str]]:
    """The program `redis-server` and its environment: the installed one, else Debian's package, unpacked."""
    if found := shutil.which("redis-server"):
        return Path(found), {}
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise UnavailableError("redis-server is not installed: install Redis 5 or later")

    def fill(place: Path) -> None:
        run_tool("apt-get", "download", "--quiet", *DEBIAN_REDIS, cwd=place)
        for package in place.glob("*.deb"):
            run_tool("dpkg", "-x", str(package), str(place))
            package.unlink()

    place = cached("peers-redis", [Path(__file__)], fill)
    libraries = {str(path.parent) for path in place.rglob("*.so*")}
    return place / "usr" / "bin" / "redis-server", {"LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))}


def version_of(program: Path, env: dict[str, str], *words: str) -> str:
    done = subprocess.run([program, *words], env={**os.environ, **env}, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[0]


def _need_java() -> None:
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{tool} is not installed: install a JDK (17 or later) and Maven")
