"""Uses an installed LaneMQ as a new user does, with the standard library only: `python -I smoke.py pure [console]`.

`make dist` runs it in a clean environment. The first argument says which variant must be installed; a second one says
that the extra `console` is, too. Prints nothing and exits with 0 if all is well.
"""

import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urldefrag, urljoin

MAX_PAGES = 500
"""Pages of the console that are fetched at most, beside the files of the wheel."""
MAX_OF_A_KIND = 3
SECONDS = 60


def main(variant: str, console: bool) -> None:
    import lanemq
    from lanemq import _fast

    installed = Path(lanemq.__file__).parent
    assert installed.is_relative_to(sys.prefix), f"lanemq is not the installed one: {installed}"
    assert variant == _fast.VARIANT, f"the wheel is {_fast.VARIANT}, not {variant}"
    assert shutil.which("cc") is None, "a compiler is on the PATH, so this proves nothing"
    every_file_is_there(installed)
    send_and_consume()
    assert "Usage:" in lane("--help")
    if console:
        with served_console() as address:
            fetch_all(address, installed / "console")
    else:
        assert "pip install 'starlette" in lane("console", code=1)


def every_file_is_there(installed: Path) -> None:
    """Templates, assets, the licence and the mark of typed packages are in the wheel."""
    assert (installed / "py.typed").is_file()
    found = {file.name for file in distribution("lanemq").files or []}
    assert {"LICENSE", "page.html", "console.css", "console.js"} <= found, found
    assert not [name for name in found if name.startswith(("test_", "conftest"))]


def send_and_consume() -> None:
    from lanemq import Admin, App, Message, Producer
    from lanemq.testing import EmbeddedBroker

    seen: queue.Queue[str] = queue.Queue()
    statuses = ["created", "paid", "shipped"]
    with EmbeddedBroker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=2, ordered=True)
        with Producer(broker.address) as producer:
            for status in statuses:
                producer.send("orders", {"status": status}, key="order-42")
        app = App(broker.address, group="billing")

        @app.ordered("orders")
        def bill(order: dict[str, str], message: Message) -> None:
            seen.put(order["status"])

        with app:
            assert [seen.get(timeout=SECONDS) for _ in statuses] == statuses


def lane(*words: str, code: int = 0) -> str:
    """What the `lanemq` command prints."""
    done = subprocess.run(["lanemq", *words], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == code, f"lanemq {' '.join(words)} exits with {done.returncode}: {done.stderr}"
    return done.stdout + done.stderr


@contextmanager
def served_console() -> Iterator[str]:
    """`lanemq up` with sample traffic, so that there is something on every page."""
    words = ["lanemq", "up", "--demo", "--data", "data", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        stuck = threading.Timer(SECONDS, process.terminate)  # which stops all of its parts
        stuck.start()
        try:
            said = ""
            while not (found := re.search(r"^console +(http://\S+)$", said, re.MULTILINE)):
                line = process.stdout.readline()
                assert line, f"lanemq up ended without an address: {said}"
                said += line
            stuck.cancel()
            wait_for_keys(found[1])
            yield found[1]
        finally:
            stuck.cancel()
            process.terminate()
            process.stdout.read()


def wait_for_keys(address: str) -> None:
    """Until the sample traffic has a parked key, whose pages the crawl then meets."""
    end = time.monotonic() + SECONDS
    while 'href="/key' not in fetch(f"{address}waiting")[1]:
        assert time.monotonic() < end, "no key is parked"
        time.sleep(0.2)


class Links(HTMLParser):
    """Collects what a page links to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = {"a": "href", "link": "href", "script": "src", "img": "src"}
        if value := dict(attributes).get(names.get(tag, "")):
            (self.links if tag == "a" else self.loads).add(value)


def fetch_all(address: str, console: Path) -> None:
    """Fetches every page that can be reached by links, all that they load, and every asset and document of the wheel.

    Pages of the same kind, such as one for each key, are fetched three times, because sample traffic never ends.
    """
    files = {
        urljoin(address, f"/{path}/{file.relative_to(folder).as_posix()}")
        for path, folder in (("assets", console / "assets"), ("docs", console / "documents"))
        for file in folder.rglob("*")
        if file.is_file()
    }
    assert urljoin(address, "/docs/index.html") in files, "the wheel has no documents"
    waiting, done, kinds = {address, *files}, set[str](), Counter[str]()
    while waiting:
        page = waiting.pop()
        done.add(page)
        kind, text = fetch(page)
        if "html" not in kind:
            continue
        found = Links()
        found.feed(text)
        in_documents = page.startswith(f"{address}docs/")
        for link in found.links | found.loads:
            target = urldefrag(urljoin(page, link))[0]
            if not target.startswith(address):
                assert in_documents, f"{page} leads to another host: {link}"
                assert link not in found.loads, f"{page} loads from another host: {link}"
                continue
            pattern = re.sub(r"[^/]*\d[^/]*|\?.*", "*", target)
            if target not in done | waiting and kinds[pattern] < MAX_OF_A_KIND:
                kinds[pattern] += 1
                waiting.add(target)
        if not in_documents and page not in files:
            assert "/docs/" in found.links, f"{page} has no link to the documents"
        assert len(done - files) < MAX_PAGES, sorted(done - files)
    screens = ("", "topics", "messages", "groups", "waiting", "pipelines", "check", "settings", "docs/")
    assert {address + screen for screen in screens} <= done, sorted(done)
    assert any("/key" in page for page in done), sorted(done)


def fetch(url: str) -> tuple[str, str]:
    """Content type and text of a page. Raises if the status is not 200."""
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return answer.headers.get("content-type", ""), answer.read().decode("utf-8", "replace")


if __name__ == "__main__":
    main(sys.argv[1], console=len(sys.argv) > 2)
