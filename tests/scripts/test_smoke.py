"""The crawl of `make dist`: it fetches every page and file, ends although pages never end, and finds what is wrong."""

import re
from pathlib import Path

import pytest

from scripts import smoke

ADDRESS = "http://console/"
SCREENS = ("topics", "messages", "groups", "waiting", "pipelines", "check", "settings", "key")


@pytest.fixture
def console(tmp_path: Path) -> Path:
    """The files of a wheel."""
    for name in ("assets/console.css", "documents/index.html", "documents/guides/x.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def crawl(monkeypatch: pytest.MonkeyPatch, console: Path, **pages: str) -> list[str]:
    """The addresses that were fetched. Every screen links to all others, and to a page of a key that links to the
    next key."""
    fetched: list[str] = []
    screens = "".join(f'<a href="/{name}">x</a>' for name in (*SCREENS, "docs/"))

    def fetch(url: str) -> tuple[str, str]:
        fetched.append(url)
        path = url.removeprefix(ADDRESS)
        number = int(found[0]) if (found := re.search(r"\d+", path)) else 0
        text = pages.get(path.replace("/", "_").removesuffix(".html"), screens)
        return "text/html", f'<link href="/assets/console.css">{text}<a href="/key?key=order-{number + 1}">x</a>'

    monkeypatch.setattr(smoke, "fetch", fetch)
    smoke.fetch_all(ADDRESS, console)
    return fetched


def test_every_screen_and_file_is_fetched_once_and_of_endless_pages_three(
    monkeypatch: pytest.MonkeyPatch, console: Path
) -> None:
    fetched = crawl(monkeypatch, console)
    assert len(fetched) == len({*fetched})
    assert {f"{ADDRESS}{name}" for name in ("docs/guides/x.html", "assets/console.css", *SCREENS)} <= {*fetched}
    assert sum("?key=" in url for url in fetched) == smoke.MAX_OF_A_KIND


def test_documents_may_link_to_other_hosts_and_load_nothing_from_them(
    monkeypatch: pytest.MonkeyPatch, console: Path
) -> None:
    crawl(monkeypatch, console, docs_guides_x='<a href="https://example.org/">x</a>')
    with pytest.raises(AssertionError, match="loads from another host"):
        crawl(monkeypatch, console, docs_guides_x='<img src="https://example.org/x.png">')
    with pytest.raises(AssertionError, match="leads to another host"):
        crawl(monkeypatch, console, topics='<a href="/docs/">x</a><a href="https://example.org/">x</a>')


def test_a_page_without_a_link_to_the_documents_and_a_wheel_without_them_are_found(
    monkeypatch: pytest.MonkeyPatch, console: Path
) -> None:
    with pytest.raises(AssertionError, match="topics has no link to the documents"):
        crawl(monkeypatch, console, topics="nothing")
    (console / "documents" / "index.html").unlink()
    with pytest.raises(AssertionError, match="has no documents"):
        crawl(monkeypatch, console)
