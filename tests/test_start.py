"""The tutorial, as a reader follows it: every file is saved, every command is run, in their order.

Addresses are replaced by those of the test. The installation is left out. The pipelines have a test of their own.
"""

import http.cookiejar
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

import pytest
from tests.documents import ROOT, Snippet, in_text

START = ROOT / "docs" / "start.md"
SECONDS = 60.0
SPARK_SECONDS = 240.0
LEFT_OUT = {
    "make setup": "the environment exists",
    "mkdir -p var/shop": "the test has a folder of its own",
    "lanemq pipeline": "it needs Spark",
    "from lanemq.pipelines import read_table": "it needs the pipeline's table",
    "   id   status": "so does what that prints",
}


class Program:
    """A program in a terminal of its own, and what it printed so far."""

    def __init__(self, words: list[str], folder: Path, env: dict[str, str]) -> None:
        self.words, self.printed, self._grew = words, "", threading.Condition()
        self.process = subprocess.Popen(
            words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grew:
                self.printed += line
                self._grew.notify_all()

    def until(self, pattern: str) -> re.Match[str]:
        """Waits until it has printed this."""
        end = time.monotonic() + SECONDS
        with self._grew:
            while (found := re.search(pattern, self.printed, re.DOTALL)) is None:
                assert self._grew.wait(end - time.monotonic()), f"{self.words} printed no {pattern!r}: {self.printed}"
        return found

    def stop(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass
class Reader:
    """A person who follows the page."""

    folder: Path
    server: str
    page: str = ""
    """The text that is followed."""
    running: dict[str, Program] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """What each command printed, in their order."""

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ, "LANEMQ_SERVER": self.server, "LANEMQ_BROKER_LISTEN": self.server,
            "LANEMQ_BROKER_MONITOR": "off", "PYTHONUNBUFFERED": "1", "XDG_CONFIG_HOME": str(self.folder),
        }  # fmt: skip

    def start(self, name: str, *words: str) -> Program:
        self.running[name] = Program([sys.executable, *words], self.folder, self.env)
        return self.running[name]

    def save(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace("localhost:9876", self.server))
        if f"Run it with `python {name}`" in self.page:
            self.start(name, name)

    def command(self, line: str, seconds: float = SECONDS) -> None:
        words = line.split()
        if words[0] == "touch":
            (self.folder / words[1]).touch()
            return
        # Not `python -m pytest`, which would put the folder on the path.
        script = ["-c", "import sys, pytest; sys.path.remove(''); sys.exit(pytest.console_main())"]
        module = script if words[0] == "pytest" else ["-m", "lanemq.cli.main"]
        self.answers[line] = ""
        if line.startswith("lanemq console"):
            self.start("console", *module, *words[1:], "--listen", "127.0.0.1:0").until("token for changes: .*\n")
            Visit(self.console).inspect("order-43", "KeyError(43)")
        elif words[1] == "up":
            at = ("--listen", self.server, "--console", "127.0.0.1:0")
            self.start("up", *module, *words[1:-1], *at).until("logs in ")
        elif words[-1] == "&":
            self.start(words[1], *module, *words[1:-1]).until(r"LaneMQ \S+ on ")
        else:
            self.answers[line] = self.output(line, *module, *words[1:], seconds=seconds)

    def output(self, what: str, *words: str, seconds: float = SECONDS) -> str:
        """Runs a program to its end."""
        found = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
        assert found.returncode == 0, f"{what}: {found.stdout}{found.stderr}"
        return found.stdout

    @property
    def console(self) -> Program:
        return self.running["console" if "console" in self.running else "up"]

    def stop(self) -> None:
        for name in reversed(self.running):
            self.running[name].stop(signal.SIGTERM)


class Visit:
    """A browser at the console, without scripts."""

    def __init__(self, console: Program) -> None:
        self.base = console.until(r"console (?:on| ) ?(http\S+)/\s")[1]
        self.token = console.until(r"token(?: for changes:| +) ?(\S+)")[1]
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies)

    def open(self, path: str, **form: str) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        asked = urllib.request.Request(self.base + path, data, {"Origin": self.base})
        with self._opener.open(asked, timeout=SECONDS) as answer:
            text: str = answer.read().decode()
        return text

    def inspect(self, key: str, error: str) -> str:
        """From Home to Waiting, and there to Inspect."""
        assert "1 key" in self.open("/")
        row = next(row for row in self.open("/waiting").split("<tr>") if key in row)
        assert error in unescape(row)
        (link,) = set(re.findall(r'href="(/waiting/lane\?[^"]+)"', row))
        page = self.open(unescape(link))
        assert error in page
        return page

    def redrive(self, key: str, error: str) -> None:
        assert 'method="post"' not in self.inspect(key, error).partition("<main")[2]
        self.open("/sign-in", token=self.token, then="/waiting")
        page = self.inspect(key, error)
        form = next(form for form in page.split("<form") if "Redrive 2 messages" in form)
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        assert "are redriven, in order" in self.open("/waiting/redrive", **fields)


def left_out(code: str) -> bool:
    return any(code.startswith(beginning) for beginning in LEFT_OUT)


def without_times(text: str) -> str:
    """And with the folder of the page."""
    text = re.sub(r"[\w-]+/bill\.py", "shop/bill.py", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\+\d\d:\d\d", "TIME", text)


@pytest.fixture
def reader() -> Iterator[Reader]:
    """In a folder below the checkout, as the page says: programs must not take the checkout's settings for theirs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (ROOT / "var").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shop-", dir=ROOT / "var") as folder:
        found = Reader(Path(folder), f"127.0.0.1:{port}")
        yield found
        found.stop()


@pytest.mark.slow
def test_a_reader_gets_through(reader: Reader) -> None:
    reader.page = START.read_text("utf-8")
    for fence in in_text(START, reader.page):
        if left_out(fence.code):
            continue
        name = saved_as(fence)
        if fence.language == "sh":
            for line in fence.code.splitlines():
                reader.command(line)
        elif name:
            reader.save(name, fence.code)
        elif "order 43 costs" in fence.code:
            repaired = re.search(r"add the price, `(prices = [^`]+)`", reader.page)
            assert repaired is not None
            repair(reader, repaired[1])
            reader.running["bill.py"].until(re.escape(fence.code))
        else:
            assert fence.language == "text", f"{fence.name} is neither saved nor run"
            printed = reader.running["send.py"].until("order 44 shipped.*\n").string
            answer = [*reader.answers.values()][-1]
            assert without_times(fence.code) in (without_times(answer), printed), fence.name
        if name == "bill.py":
            reader.running["bill.py"].until("lane parked.*order-43")
    assert {"bill.py", "send.py"} <= set(reader.running)
    assert "1 passed" in reader.answers["pytest test_bill.py"]


def saved_as(fence: Snippet) -> str:
    """The name under which the text between this fence and the one before says to save it; empty if it does not."""
    lines = fence.document.read_text("utf-8").splitlines()[: fence.line - 1]
    for line in reversed(lines[-8:]):
        if line.startswith("```"):
            break
        if found := re.search(r"[Ss]ave this as `([\w.]+)`", line):
            return found[1]
    return ""


def repair(reader: Reader, prices: str) -> None:
    """Stops bill.py, adds the price, starts it again, and redrives the key in the console."""
    reader.running["bill.py"].until("lane parked.*order-43")
    reader.running["bill.py"].stop(signal.SIGINT)
    path = reader.folder / "bill.py"
    path.write_text(re.sub(r"prices = \{.*\}", prices, path.read_text()))
    reader.start("bill.py", "bill.py")
    Visit(reader.console).redrive("order-43", "KeyError(43)")


@pytest.mark.extended  # it starts Spark as a reader does, which takes longer than `make test` has
@pytest.mark.driver
@pytest.mark.timeout(2 * SPARK_SECONDS)
def test_the_pipeline_makes_the_table_that_the_page_shows(reader: Reader) -> None:
    if shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}") is None:
        pytest.skip("Spark needs a Java runtime, version 17 or newer: scripts/java.sh says how to get one")
    reader.command("lanemq broker --data data &")
    reader.command("lanemq topic create orders --queues 8 --ordered")
    fences = list(in_text(START, START.read_text("utf-8")))
    for fence in fences:
        if saved_as(fence) in ("bill.py", "send.py", "orders.toml"):
            reader.save(saved_as(fence), fence.code)
    reader.output("send.py", "send.py")
    commands = [
        line for fence in fences if fence.code.startswith("lanemq pipeline") for line in fence.code.splitlines()
    ]
    assert "lanemq pipeline run orders.toml --once" in commands
    for line in commands:
        reader.command(line, SPARK_SECONDS)
    read, shown = (next(each.code for each in fences if each.code.startswith(text)) for text in (READS, TABLE))
    assert reader.output(READS, "-c", read) == shown


READS, TABLE = "from lanemq.pipelines import read_table", "   id   status"
