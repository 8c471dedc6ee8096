"""The console in a real browser: no errors, no violations of the policy, live changes; what strangers wrote stays text.

They need Chromium: scripts/browser.sh says how to get it. All tests share one browser.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.console.conftest import HOSTILE, TOKEN, Stage, until
from tests.console.pipelines import given_up, parked_keys
from tests.console.window import MAX_WAIT_MS, Window, opened, serving

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.console.event_streams import EventStreams
from lanemq.console.reading import ConsoleBusy
from lanemq.console.settings import ConsoleSettings
from lanemq.core.sending.sharding import text_hash

playwright = pytest.importorskip("playwright.sync_api")

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

HOSTILE_KEY = f"/key?{urlencode({'topic': 'orders', 'key': HOSTILE})}"
SCREENS = {
    "home": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/messages?topic=orders",
    "message": "/message?topic=orders&broker=lanemq&queue=0&offset=0",
    "key": "/key?topic=orders&key=order-7",
    "hostile-key": HOSTILE_KEY,
    "groups": "/groups",
    "group": "/groups/shipping",
    "waiting": "/waiting",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/0",
    "pipeline-key": f"/pipelines/0/key?{urlencode({'key': HOSTILE})}",
    "pipeline-dead": "/pipelines/1",
    "pipeline-dead-letter": "/pipelines/1/dead-letter?id=orders/broker-a/0/0",
    "check": "/check",
    "settings": "/settings",
    "dead": "/dead",
    "dead-of-group": "/dead?group=mail",
    "dead-letter": "/dead/letter?group=mail&id=lanemq/0/0",
    "search": "/messages",
    "find": "/key",
    "no-such-key": "/key?key=nothing-has-this",
    "sign-in": "/sign-in",
    "not-found": "/nothing",
}
QUEUE_OF_HOSTILE = str(abs(text_hash(HOSTILE)) % 2)
LANE = {"group": "shipping", "topic": "orders", "broker": "lanemq", "queue": QUEUE_OF_HOSTILE, "key": HOSTILE}
FORMS = {
    "lane": f"/waiting/lane?{urlencode(LANE)}",
    "discard-lane": f"/waiting/discard?{urlencode({**LANE, 'all': '1'})}",
    "new-topic": "/topic/new",
    "new-topic-preview": "/topic/new?name=invoices&queues=8&order=key",
    "delete-topic": "/topics/orders/delete",
    "topic-settings": "/topics/orders/settings",
    "publish": "/topics/orders/publish",
    "publish-preview": "/topics/orders/publish?key=order-7&value=%7Bwrong",
    "reset": "/groups/shipping/reset",
    "reset-preview": "/groups/shipping/reset?topic=orders&to=first",
    "pipeline-redrive": "/pipelines/0/change?action=redrive",
    "pipeline-redrive-dead": "/pipelines/1/change?action=redrive-dead",
    "redrive-dead": "/dead/redrive?group=mail",
    "discard-dead": "/dead/discard?group=mail",
}
"""Pages with a form for a person who has signed in. The others see the page without the form."""


@pytest.fixture(scope="module")
def served(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console with a real socket, because a browser needs one, and with the checkpoints of two pipelines."""
    folders = tmp_path_factory.mktemp("parked"), tmp_path_factory.mktemp("dead")
    parked_keys(folders[0])
    given_up(folders[1])
    settings = ConsoleSettings(stage.address, every=0.3, history=stage.history, pipelines=folders)
    with serving(settings) as base:
        yield base


@pytest.fixture
def window(browser: "playwright.Browser", served: str) -> Iterator[Window]:
    with opened(browser, served) as found:
        yield found


@pytest.mark.parametrize("name", SCREENS | FORMS)
def test_a_screen_opens_without_complaints_and_fits_its_window(window: Window, name: str) -> None:
    """Violations of the policy, and scripts in names and bodies, would be complaints."""
    window.open((SCREENS | FORMS)[name])
    assert window.page.locator("h1").count() == 1
    for width in (390, 1280):
        window.page.set_viewport_size({"width": width, "height": 800})
        assert not window.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert window.page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert window.problems == []


def test_the_complaints_are_heard(window: Window) -> None:
    """Control: what the test above looks for does arrive."""
    window.open("/")
    window.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(1)>')")
    until("the violation to be reported", lambda: window.page.wait_for_timeout(20) or bool(window.problems))


def test_an_open_page_shows_a_change(window: Window, stage: Stage) -> None:
    window.open("/topics")
    with Admin(stage.address) as admin:
        admin.create_topic("appears-live", 1, ordered=True)
    window.page.get_by_role("link", name="appears-live").wait_for(timeout=60_000)
    with Admin(stage.address) as admin:
        admin.delete_topic("appears-live")
    window.page.get_by_role("link", name="appears-live").wait_for(state="detached", timeout=60_000)
    assert window.problems == []


def test_a_group_plots_its_lag_and_has_the_figures_as_a_table(window: Window, stage: Stage) -> None:
    """The lag of a group without members grows while the page is open, and the table stays open."""
    with Admin(stage.address) as admin, Producer(stage.address) as producer:
        admin.ensure_topic("plotted", 1, ordered=True)
        (queue,) = [each.queue for each in admin.describe_topic("plotted").queues]
        admin.commit("plotters", queue, 0)
        until("the console to know the group", lambda: _opens(window, "/groups/plotters"))
        window.page.locator(".plot .area").nth(1).wait_for(timeout=60_000)
        window.page.locator("#course summary").click()
        producer.send_many("plotted", [("k", number) for number in range(7)])
        window.page.locator("#course tbody tr").first.get_by_role("cell", name="7", exact=True).wait_for(timeout=60_000)
        assert window.page.locator("#course").get_attribute("open") is not None
        area = window.page.locator(".plot .area").first
        box = area.bounding_box()
        assert box is not None
        area.hover(position={"x": box["width"] - 1, "y": box["height"] / 2})
        window.page.locator("p.pointed").first.filter(has_text=": 7 behind").wait_for()
        assert area.locator("line.pointed").get_attribute("x1") == "100%"
        window.page.locator("h1").hover()
        assert window.page.locator("p.pointed").first.inner_text() == ""
        admin.delete_topic("plotted")
    assert window.problems == []


def test_the_live_tail_shows_new_messages_as_text(window: Window, stage: Stage) -> None:
    with Admin(stage.address) as admin:
        admin.ensure_topic("tailed", 1, ordered=True)
    until("the console to know the topic", lambda: _opens(window, "/messages?topic=tailed"))
    window.page.get_by_role("button", name="Live tail").click()
    end = time.monotonic() + 60
    with Producer(stage.address) as producer:
        while not window.page.locator("#rows tr").count() and time.monotonic() < end:
            producer.send("tailed", HOSTILE.encode(), key=HOSTILE)
            window.page.wait_for_timeout(200)
    assert HOSTILE in window.page.locator("#rows td.body").first.inner_text()
    window.page.get_by_role("button", name="Pause").click()
    assert window.problems == []


def _opens(window: Window, path: str) -> bool:
    answer = window.page.goto(window.base + path)
    window.problems.clear()
    return answer is not None and answer.status == 200


def test_a_person_signs_in_and_redrives_a_key(window: Window, stage: Stage) -> None:
    """Its first message fails again, so the key is parked again, and other tests find it where it was."""
    window.open("/waiting")
    window.page.get_by_role("link", name="Sign in", exact=True).click()
    window.page.get_by_label("Token").fill(TOKEN)
    window.page.get_by_role("button", name="Sign in").first.click()
    window.page.locator("tr", has_text="order-7").get_by_role("link", name="Inspect").first.click()
    window.page.get_by_role("button", name="Redrive 2 messages").click()
    assert "of key order-7 are redriven" in window.page.get_by_role("status").first.inner_text()
    assert window.problems == []


def test_a_person_chooses_keys_and_redrives_them_after_a_preview(window: Window, stage: Stage) -> None:
    """What was chosen stays chosen while the page is kept up to date. The key fails again, and is parked again."""
    window.open("/sign-in?then=/waiting")
    window.page.get_by_label("Token").fill(TOKEN)
    window.page.get_by_role("button", name="Sign in").first.click()
    box = window.page.get_by_role("checkbox", name="Choose order-7 of shipping")
    box.check()
    with Producer(stage.address) as producer:
        producer.send("orders", {"order": HOSTILE}, key=HOSTILE, tag="late")
    joined = window.page.locator("tr", has_text=HOSTILE).get_by_role("cell", name="3", exact=True)
    joined.first.wait_for(timeout=60_000)
    assert box.is_checked()
    assert window.page.get_by_role("checkbox", checked=True).count() == 1
    window.page.get_by_role("button", name="Redrive chosen keys").click()
    window.page.get_by_role("heading", name="Redrive 2 messages of 1 key").wait_for()
    window.page.get_by_role("button", name="Redrive 2 messages").click()
    assert "of key order-7 are redriven" in window.page.get_by_role("status").first.inner_text()
    assert window.problems == []


def test_all_keys_are_chosen_at_once_by_keyboard_and_the_button_stays_in_sight(window: Window) -> None:
    window.open("/sign-in?then=/waiting")
    window.page.get_by_label("Token").fill(TOKEN)
    window.page.get_by_role("button", name="Sign in").first.click()
    everything = window.page.get_by_role("checkbox", name="Choose all parked keys")
    boxes, count = window.page.locator('input[name="lane"]'), window.page.locator("#chosen")
    everything.focus()
    window.page.keyboard.press("Space")
    total = boxes.count()
    assert all(box.is_checked() for box in boxes.all())
    assert count.inner_text() == f"{total} of {total} chosen"
    boxes.first.uncheck()
    assert count.inner_text() == f"{total - 1} of {total} chosen"
    assert everything.evaluate("box => box.indeterminate")
    window.page.set_viewport_size({"width": 390, "height": 400})
    boxes.last.scroll_into_view_if_needed()
    assert window.page.evaluate("scrollY") > 0
    box = window.page.get_by_role("button", name="Redrive chosen keys").bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 400 - box["height"]
    window.page.get_by_role("button", name="Redrive chosen keys").click()
    window.page.get_by_role("heading", name=f"of {total - 1} key").wait_for()
    assert window.page.url == f"{window.base}/waiting/chosen"
    assert not window.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    window.page.go_back()
    until("the choice to be counted again", lambda: count.inner_text() == f"{total - 1} of {total} chosen")
    assert window.problems == []


def test_a_page_that_gets_no_event_stream_says_so_and_gets_one_later(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConsoleBusy("50 pages are open at 127.0.0.1")

    monkeypatch.setattr(EventStreams, "take", refuse)
    window.open("/topics")
    said = window.page.locator("#live-refused")
    window.page.get_by_text("This page is not kept up to date. 50 pages are open at 127.0.0.1").wait_for()
    assert window.page.get_by_role("heading", name="Topics").is_visible()
    assert window.page.locator(".age").is_hidden()
    monkeypatch.undo()
    said.wait_for(state="hidden")
    assert window.page.locator(".age").is_visible()
    assert all("503" in each for each in window.problems)


def test_a_page_that_cannot_reach_the_console_says_so_and_gets_its_event_stream_later(window: Window) -> None:
    """As one that was opened while the console restarts."""
    tries = list[str]()

    def once_away(route: "playwright.Route") -> None:
        tries.append(route.request.url)
        if len(tries) == 1:
            route.abort("connectionrefused")
        else:
            route.continue_()

    window.page.route("**/live/topics", once_away)
    window.open("/topics")
    window.page.get_by_text("This page is not kept up to date. The console does not answer.").wait_for()
    window.page.locator("#live-refused").wait_for(state="hidden")
    assert len(tries) == 2
    assert window.page.locator(".age").is_visible()


def test_a_person_creates_a_topic_after_its_preview(window: Window, stage: Stage) -> None:
    window.open("/topic/new")
    window.page.get_by_label("Name").fill("made-in-a-browser")
    window.page.get_by_role("button", name="Preview").click()
    window.page.get_by_role("heading", name="Cannot be changed later").wait_for()
    window.page.get_by_role("link", name="Sign in to create it").click()
    window.page.get_by_label("Token").fill(TOKEN)
    window.page.get_by_role("button", name="Sign in").first.click()
    with Admin(stage.address) as admin:
        assert "made-in-a-browser" not in admin.topics()
        window.page.get_by_role("button", name="Create topic").click()
        assert "was created" in window.page.get_by_role("status").inner_text()
        assert "made-in-a-browser" in admin.topics()
        admin.delete_topic("made-in-a-browser")
    assert window.problems == []


def test_a_person_discards_a_message_of_a_pipeline_after_its_preview(window: Window) -> None:
    window.open("/pipelines/0/change?action=discard-first&key=a")
    window.page.get_by_role("link", name="Sign in with the token to discard").click()
    window.page.get_by_label("Token").fill(TOKEN)
    window.page.get_by_role("button", name="Sign in").first.click()
    window.page.get_by_role("button", name="Discard 1 message").click()
    assert "1 message of 1 key will be turned into dead letters" in window.page.get_by_role("status").inner_text()
    assert window.page.get_by_text("discard first asked for").count() == 1
    assert window.problems == []


def test_the_keyboard_reaches_the_search_and_the_content(window: Window) -> None:
    window.open("/groups")
    window.page.keyboard.press("/")
    assert window.page.evaluate("document.activeElement.id") == "find"
    window.page.keyboard.type("order-7")
    window.page.keyboard.press("Enter")
    window.page.get_by_role("heading", name="Key order-7").wait_for()
    window.page.keyboard.press("Tab")
    assert window.page.evaluate("document.activeElement.className") == "skip"


@pytest.fixture
def signed_in_page(
    browser: "playwright.Browser", served: str, request: pytest.FixtureRequest
) -> Iterator["playwright.Page"]:
    """A page of a person who has signed in, with the scheme of the parameter. Its policy allows injected scripts."""
    context = browser.new_context(locale="en-US", color_scheme=request.param, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(MAX_WAIT_MS)
    page.goto(f"{served}/sign-in")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").first.click()
    page.get_by_role("button", name="Sign out").wait_for()
    yield page
    context.close()


def serious_issues(page: "playwright.Page", axe: Path) -> list[tuple[str, str]]:
    page.add_script_tag(path=axe)
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [
        (each["id"], node["html"][:200])
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("signed_in_page", "width"), [("light", 390), ("dark", 1280)], indirect=["signed_in_page"])
def test_axe_finds_no_serious_issue(signed_in_page: "playwright.Page", served: str, axe: Path, width: int) -> None:
    """Every screen and every form, in both schemes, in the wide layout and in the narrow one."""
    signed_in_page.set_viewport_size({"width": width, "height": 800})
    issues = []
    for name, path in (SCREENS | FORMS).items():
        signed_in_page.goto(served + path)
        issues += [(name, *each) for each in serious_issues(signed_in_page, axe)]
    signed_in_page.goto(f"{served}/waiting")
    signed_in_page.get_by_role("checkbox", name="Choose all parked keys").check()
    signed_in_page.get_by_role("button", name="Redrive chosen keys").click()
    signed_in_page.get_by_role("heading", name="Redrive").wait_for()
    issues += [("chosen", *each) for each in serious_issues(signed_in_page, axe)]
    assert issues == []


@pytest.mark.parametrize("signed_in_page", ["light"], indirect=True)
def test_axe_hears_of_an_issue(signed_in_page: "playwright.Page", served: str, axe: Path) -> None:
    """Control: text that cannot be read, and a field without a label, are issues."""
    signed_in_page.goto(served)
    signed_in_page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<p id=pale>pale</p><input>');"
        "document.getElementById('pale').style.color = '#eee'"
    )
    assert {"color-contrast", "label"} <= {name for name, _ in serious_issues(signed_in_page, axe)}
