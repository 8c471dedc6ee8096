"""Every screen over HTTP, against a real broker: what it shows, and that strangers' text stays text."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient
from tests.console.conftest import HOSTILE, Stage

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.console.protection import POLICY
from lanemq.console.routes import messages

PAGES = {
    "/": "Is anything stuck?",
    "/topics": "orders",
    "/topics/orders": "Groups that read it",
    "/groups": "shipping",
    "/groups/shipping": "worker-1@1",
    "/waiting": "order-7",
    "/key": "The journey of a key",
    "/key?topic=orders&key=order-7": "no carrier takes order-7",
    "/messages": "Choose a topic",
    "/messages?topic=orders": "Live tail",
    "/pipelines": "--pipeline",
    "/check": "Order check",
    "/settings": "retention",
    "/sign-in": "Token",
}


@pytest.mark.parametrize(("path", "text"), PAGES.items())
def test_a_page_shows_what_it_is_about_under_the_strict_policy(client: TestClient, path: str, text: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert text in answer.text
    assert answer.headers["content-security-policy"] == POLICY
    assert '<a class="apart" href="/docs/">Documents</a>' in answer.text
    assert not re.search(r"<script(?! src=\"/assets/)|<style|<[^<>]*\s(?:style|on\w+)=|https?://(?!127)", answer.text)


def test_the_policy_allows_nothing_inline_and_nothing_foreign() -> None:
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none';")


def test_every_file_that_a_page_names_is_served(client: TestClient) -> None:
    page = client.get("/").text
    files = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
    assert {*files} == {"/assets/lanes.svg", "/assets/console.css", "/assets/console.js"}
    for path in files:
        assert client.get(path).status_code == 200, path


def test_names_and_bodies_from_strangers_are_shown_as_text(client: TestClient) -> None:
    paths = ("/waiting", "/messages?topic=orders", f"/key?{urlencode({'topic': 'orders', 'key': HOSTILE})}")
    for path in (*paths, "/messages?topic=returns", f"/message?{urlencode(_place_of_hostile(client))}"):
        text = client.get(path).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "&lt;script&gt;alert(1)" in text, path
    assert "<script>alert" not in client.get("/topics/" + quote("<script>alert(1)</script>")).text


def _place_of_hostile(client: TestClient) -> dict[str, str]:
    return {"topic": "returns", "broker": "lanemq", "queue": "0", "offset": "0"}


def test_a_body_that_is_not_text_is_shown_escaped_and_in_bytes(client: TestClient) -> None:
    text = client.get("/message?topic=returns&broker=lanemq&queue=0&offset=1").text
    assert "\\x00" in text
    assert "00 ff 6e 6f 74" in text
    assert "\x1b" not in text


def test_the_page_of_a_key_says_who_owns_its_queue_what_it_waits_for_and_every_turn(client: TestClient) -> None:
    text = client.get("/key?topic=orders&key=order-7").text
    now, _, journey = text.partition("<h2>Journey</h2>")
    assert "Waits for a person: it was parked after 2 attempts" in now
    assert re.search(r'<dt>Owner</dt><dd><code class="owner"[^>]*>worker-1@1</code>', now)
    assert re.search(r"<dt>Lease left</dt><dd>(\d+ ms|[\d.]+ s)</dd>", now)
    assert re.search(
        r'<pre class="errortext">ValueError\(&#39;no carrier takes order-7&#39;\) at [\w/]+.py:\d+ in ship</pre>', now
    )
    assert "attempt 2" in journey  # from the history
    error = '<pre class="errortext">ValueError(&#39;no carrier takes order-7&#39;)</pre>'
    assert journey.count(error) >= 2, "each attempt has its error"
    assert journey.count('class="what"') == 3
    assert "is missing" not in journey


def test_the_page_of_a_finished_key_says_so(client: TestClient) -> None:
    text = client.get("/key?topic=orders&key=order-1").text
    now = text.partition("<h2>Journey</h2>")[0]
    assert "All messages are finished" in now
    assert "errortext" not in now


def test_a_key_without_a_topic_leads_to_the_only_topic_that_has_it(client: TestClient) -> None:
    answer = client.get("/key?key=order-7", follow_redirects=False)
    assert answer.headers["location"] == "/key?topic=orders&key=order-7"
    assert "No topic has messages of the key" in client.get("/key?key=nothing-has-this").text


def test_search_finds_by_key_by_id_by_time_and_by_words(client: TestClient, stage: Stage) -> None:
    def page(words: str) -> str:
        return client.get(f"/messages?{urlencode({'topic': 'orders', 'q': words})}").text

    def found(words: str) -> int:
        return page(words).count('<tr><th scope="row"')

    everything = found("")
    assert everything >= 12
    assert found("key:order-7") == 3
    assert page("key:order-7").count("&#34;order-7&#34;") == 3
    assert found("paid") == found("paid after:1h") == 4
    assert found("paid key:order-7") == 1
    assert (found("after:1h"), found("before:1h")) == (everything, 0)
    assert (found("after:2100-01-01T00:00"), found("before:2100-01-01T00:00")) == (0, everything)
    with Admin(stage.address) as admin:
        id = admin.find_key("orders", "order-7")[0].message_id
    assert (found(f"id:{id}"), found("id:0000")) == (1, 0)
    assert "is not a time" in client.get("/messages?topic=orders&q=after:soon").text


def test_plots_are_drawn_by_the_server_with_their_figures_as_a_table(client: TestClient) -> None:
    for path in ("/", "/groups/shipping"):
        text = client.get(path).text
        plots = re.findall(r'<svg class="area" role="img" aria-label="[^"]+" data-points="([^"]+)">', text)
        assert len(plots) == 2
        assert all(len(points.split(";")) >= 2 for points in plots)
        assert len(re.findall(r'<path class="(?:accent|busy|warn)"[^>]* d="M[^"]+"', text)) >= 2
        table = text.partition('<details class="course"')[2].partition("</details>")[0]
        assert table.count("<tr><th scope") >= 2


def test_live_tails_of_a_topic_share_their_reads_and_have_a_bound(
    client: TestClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, reads = client.app.state.console, list[str]()
    monkeypatch.setattr(messages, "TAIL_SECONDS", 0.02)
    for name in ("_ends", "_arrived"):
        real = getattr(messages, name)
        monkeypatch.setattr(messages, name, lambda *args, real=real, name=name: (reads.append(name), real(*args))[1])

    async def two_tails() -> list[str]:
        tails = [messages.new_rows(console, "returns") for _ in range(2)]
        assert await asyncio.gather(*(anext(tail) for tail in tails)) == [": \n\n"] * 2
        assert (console.tails, reads) == (2, ["_ends"])
        monkeypatch.setattr(messages, "TAIL_AGE", 0)
        await asyncio.to_thread(send)
        shown = await asyncio.gather(*(_first_row(tail) for tail in tails))
        for tail in tails:
            await tail.aclose()
        return shown

    def send() -> None:
        with Producer(stage.address) as producer:
            producer.send("returns", b"tailed", key="return-3")

    first, second = client.portal.call(two_tails)
    assert "tailed" in first
    assert first == second
    assert reads.count("_arrived") <= 2
    assert console.tails == 0
    monkeypatch.setattr(messages, "MAX_TAILS", 0)
    answer = client.get("/tail?topic=returns")
    assert (answer.status_code, "live tails are open: close one" in answer.text) == (503, True)


async def _first_row(tail: AsyncIterator[str]) -> str:
    async for text in tail:
        if text.startswith("data:"):
            return text
    raise AssertionError


def test_what_does_not_exist_is_not_found(client: TestClient) -> None:
    paths = (
        "/topics/none", "/groups/none", "/nothing", "/messages?topic=none", "/tail?topic=none",
        "/message?topic=orders&broker=lanemq&queue=0&offset=999",
        "/waiting/lane?group=none&topic=orders&broker=lanemq&queue=0&key=k",
    )  # fmt: skip
    for path in paths:
        assert client.get(path).status_code == 404, path
    assert "There is no page at this address." in client.get("/nothing").text
    assert client.get("/message?topic=orders&queue=x&offset=y").status_code == 400


def test_settings_have_the_address_in_force_units_and_where_a_value_came_from(client: TestClient, stage: Stage) -> None:
    text = client.get("/settings").text
    port = stage.address.rpartition(":")[2]
    assert re.search(rf"listen</th>.*?<code>127\.0\.0\.1:{port}</code>.*?set at its start", text)
    assert re.search(
        r"retention</th>.*?<td data-label=\"Value\"><code>259200 s</code> <span class=\"dim\">3 days", text
    )
    assert re.search(r"every</th>.*?<code>0\.2 s</code>", text)


def test_settings_have_the_limits_that_zero_stands_for(client: TestClient) -> None:
    text = client.get("/settings").text
    found = re.search(r"retention_bytes</th>.*?<code>(\d+) B</code> <span class=\"dim\">([^<]+)<", text)
    assert found is not None
    assert int(found[1]) > 2**20
    assert found[2].endswith("B")
    assert "no limit" not in text
    assert "monitor_required" not in text


def test_without_the_site_the_page_of_the_documents_says_how_to_get_it(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (documents,) = (each.app for each in client.app.routes if getattr(each, "path", "") == "/docs")
    monkeypatch.setattr(documents, "_folder", tmp_path)
    monkeypatch.setattr(documents, "_site", StaticFiles(directory=tmp_path, html=True))
    for path, status in (("/docs", 200), ("/docs/", 200), ("/docs/guides/console.html", 404)):
        answer = client.get(path)
        assert answer.status_code == status, path
        assert "Run <code>make docs</code>, then reload this page." in answer.text
        assert "<code>pip install '.[console]'</code>" in answer.text
        assert "`" not in answer.text
    (tmp_path / "index.html").write_text("built in the meantime")
    assert client.get("/docs/").text == "built in the meantime"
    assert client.get("/docs/guides/none.html").status_code == 404
