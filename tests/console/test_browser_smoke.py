"""Two pages in a real browser, as a quick part of all tests. `make browser` opens every screen."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.console.conftest import Stage
from tests.console.window import Window, opened, serving

from lanemq.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def window(browser: "Browser", stage: Stage) -> Iterator[Window]:
    with serving(ConsoleSettings(stage.address, every=0.3)) as base, opened(browser, base) as found:
        yield found


def test_home_plots_and_leads_to_what_waits_without_a_complaint(window: Window) -> None:
    """Scripts, styles, event stream and plots work under the policy, and what strangers wrote stays text."""
    window.open("/")
    window.page.locator(".uplot canvas").first.wait_for()
    window.page.get_by_role("link", name="Is anything stuck?").click()
    window.page.get_by_role("heading", name="Waiting", exact=True).wait_for()
    assert window.page.get_by_text("<script>alert(1)</script>").count() > 0
    window.page.set_viewport_size({"width": 390, "height": 800})
    window.page.get_by_text("Dead letters").first.locator(".help").hover()
    # The page may need a moment for its new width.
    window.page.wait_for_function("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert window.problems == []
