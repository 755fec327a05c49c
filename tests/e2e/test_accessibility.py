"""Every page against what can be computed of WCAG 2.2 AA: names, ids, landmarks, headings, keys, targets, contrast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.pages import Open, paths

if TYPE_CHECKING:
    from playwright.sync_api import Page

AUDIT = (Path(__file__).parent / "accessibility.js").read_text().rstrip().removesuffix(";")

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def wrong(page: Page, width: int, theme: Any) -> list[str]:
    """What the audit finds on the page that is open, everything on it unfolded."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.evaluate("document.querySelectorAll('main details').forEach(one => one.open = true)")
    for plot in page.locator(".plot[data-source]").all():
        if plot.is_visible():
            plot.locator(".main-svg").first.wait_for(state="attached")
    page.wait_for_function("new Promise(done => requestAnimationFrame(() => setTimeout(done, 60, true)))")
    found: list[str] = page.evaluate(AUDIT)
    return found


def test_every_page_can_be_read_and_used_by_all(open_page: Open, sample: dict[str, Any]) -> None:
    page = open_page()
    for path in paths(sample):
        page.goto(path)
        for width, theme in ((1440, "light"), (390, "dark")):
            assert wrong(page, width, theme) == [], f"{path} at {width} px, {theme}"


def test_forms_that_are_refused_and_pages_that_are_not_there(open_page: Open) -> None:
    page = open_page()
    page.goto("/plans/new/")
    page.get_by_role("button", name="Store and compute").evaluate("button => button.form.noValidate = true")
    page.get_by_role("button", name="Store and compute").click()
    page.locator("[aria-invalid=true]").first.wait_for()
    assert wrong(page, 1440, "light") == []
    page.goto("/plans/999999/")
    assert wrong(page, 390, "dark") == []
    page.context.clear_cookies()
    page.goto("/login/")
    assert wrong(page, 1440, "light") == []


def test_the_audit_sees_what_is_wrong(open_page: Open) -> None:
    page = open_page()
    page.goto("/help/")
    page.locator("main").evaluate(
        """main => main.insertAdjacentHTML("beforeend", `<button></button><h6>Deep</h6><input aria-describedby="gone">
        <i id="main"></i><svg role="img" width="9" height="9"></svg><p class="faint">faint</p>`)"""
    )
    page.locator(".faint").evaluate("node => { node.style.color = 'rgb(200, 205, 210)'; }")
    found = " ".join(wrong(page, 1440, "light"))
    for rule in (
        "control has no name", "heading skips", "aria-describedby points at nothing", "id stands twice",
        "picture has no words", "contrast 1.",
    ):  # fmt: skip
        assert rule in found


def test_the_first_key_leads_past_the_navigation(open_page: Open) -> None:
    page = open_page()
    page.goto("/plans/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
