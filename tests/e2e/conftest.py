"""A real browser on the sample fleet, for the tests of the pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.jobs import sending
from tests.controlplane import fleet_fixture
from tests.e2e.pages import Open

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def orm_beside_playwright() -> Iterator[None]:
    """Playwright keeps an event loop in this thread; the ORM is used between its calls only."""
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    yield
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    else:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


@pytest.fixture(scope="module")
def browser(orm_beside_playwright: None) -> Iterator[Browser]:
    """Chromium; the test is skipped where it or Playwright is missing."""
    playwright_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def sample(transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: Any, data_dir: Path) -> dict[str, Any]:
    """The sample fleet; messages to workers are swallowed."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setattr(sending, "publish", lambda task, payload, queue: None)
    return fleet_fixture.make_everything()


@pytest.fixture
def open_page(browser: Browser, live_server: Any, sample: dict[str, Any]) -> Iterator[Open]:
    """A signed-in page at a width and theme; whatever the console says is kept in ``page.said``."""
    contexts: list[BrowserContext] = []

    def inner(width: int = 1600, theme: Any = "light", user: str = "ada") -> Page:
        context = browser.new_context(
            base_url=live_server.url, viewport={"width": width, "height": 900}, color_scheme=theme
        )
        contexts.append(context)
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.said = said  # type: ignore[attr-defined]
        page.goto("/login/")
        page.get_by_label("Name").fill(user)
        page.get_by_label("Password").fill(fleet_fixture.PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/")
        return page

    yield inner
    for context in contexts:
        context.close()
