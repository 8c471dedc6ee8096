"""Two pages in a real browser, as a quick part of all tests. `make browser` opens every screen."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.console.conftest import Stage, until
from tests.console.test_dead_letters import Office
from tests.console.window import Window, opened, serving

from lanemq.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

LONG_NAME = "a_group_whose_name_is_one_long_word_and_wider_than_a_small_screen"


@pytest.fixture(scope="module")
def window(browser: "Browser", stage: Stage) -> Iterator[Window]:
    Office(stage, LONG_NAME).give_up(("a", "a1"))
    with serving(ConsoleSettings(stage.address, every=0.3)) as base, opened(browser, base) as found:
        yield found


def test_home_plots_and_leads_to_what_waits_without_a_complaint(window: Window) -> None:
    """Scripts, styles, event stream and plots work under the policy, and what strangers wrote stays text."""
    window.open("/")
    window.page.locator(".plot .area").first.wait_for()
    window.page.get_by_role("link", name="Is anything stuck?").click()
    window.page.get_by_role("heading", name="Waiting", exact=True).wait_for()
    assert window.page.get_by_text("<script>alert(1)</script>").count() > 0
    # The page may need a moment for its new width.
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    for width in (390, 320):
        window.page.set_viewport_size({"width": width, "height": 800})
        window.page.get_by_text("Dead letters").first.locator(".help").hover()
        # Not `wait_for_function`, which evaluates a text in the page: its content policy refuses that.
        said = f"the page with a tip to fit {width} points"
        until(said, lambda: window.page.evaluate(fits), instead=lambda: too_wide(window))
    assert window.page.get_by_text(LONG_NAME).count() > 0
    assert window.problems == []


def too_wide(window: Window) -> str:
    """The page's width and the elements that reach beyond the window."""
    return str(
        window.page.evaluate(
            "() => { const width = document.documentElement.clientWidth; return [width,"
            "document.documentElement.scrollWidth, ...[...document.querySelectorAll('*')]"
            ".filter(element => element.getBoundingClientRect().right > width)"
            ".map(element => element.outerHTML.slice(0, 150))] }"
        )
    )


ROW = '<tr><th><a href="/{0}">{0}</a></th><td>{1}</td><td><a class="act" href="/{0}/act">Inspect</a></td></tr>'


def page_with(*rows: tuple[str, str], note: str = "") -> str:
    table = "".join(ROW.format(*row) for row in rows)
    return (
        f"{note}<p id=quoted>as it was said</p><p data-own></p><details><summary>More</summary>{note}</details>"
        f"<form><input name=id value=first><input type=checkbox id=box></form>"
        f"<div class=table><table><tbody>{table}</tbody></table></div>"
    )


def test_a_page_that_is_brought_up_to_date_keeps_what_a_person_does_in_it(window: Window) -> None:
    """Focus, selected and typed text, a checked box, an open part; and a focused link still leads to its own row."""
    window.open("/sign-in")  # it has no event stream that would change the page, too
    page = window.page
    page.evaluate(
        "html => { const made = document.createElement('div'); made.id = 'merged'; made.innerHTML = html;"
        "document.querySelector('main').replaceChildren(made) }",
        page_with(*((f"key-{number}", "parked") for number in range(9))),
    )
    page.locator("#merged [name=id]").fill("typed")
    page.locator("#box").check()
    page.evaluate("document.querySelector('#merged [data-own]').textContent = 'of the script'")
    page.locator("#merged summary").click()
    page.locator("[href='/key-3/act']").focus()
    page.evaluate("getSelection().selectAllChildren(document.getElementById('quoted'))")
    kept = page.evaluate_handle("[document.activeElement, document.getElementById('quoted').firstChild]")
    after = [("new", "held"), *((f"key-{number}", "held") for number in (1, 3, 2, 5, 4))]
    page.evaluate("html => mergePage(document.getElementById('merged'), html)", page_with(*after, note="<p>Note</p>"))
    assert page.locator("#merged tr").all_inner_texts() == [f"{key}\t{state}\tInspect" for key, state in after]
    assert page.evaluate("kept => document.activeElement === kept[0] && kept[0].getAttribute('href')", kept) == (
        "/key-3/act"
    )
    assert page.evaluate("kept => getSelection().anchorNode.contains(kept[1]) && String(getSelection())", kept) == (
        "as it was said"
    )
    assert page.locator("#merged [name=id]").input_value() == "typed"
    assert page.locator("#box").is_checked()
    assert page.locator("#merged details").get_attribute("open") is not None
    assert page.locator("#merged > p").all_inner_texts() == ["Note", "as it was said", "of the script"]
    assert window.problems == []
