"""Swagger UI in Chromium, from files of this machine alone, under the strict content security policy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect, sync_playwright

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]


@pytest.fixture(autouse=True)
def _orm_beside_playwright(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    yield
    assert os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] == "true"


def test_swagger_ui_renders_and_calls_the_api(live_server: Any, site: Any, viewer: Any, client_of: Any) -> None:
    token = client_of(viewer)._credentials["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    said: list[str] = []
    hosts: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        answer = page.goto(f"{live_server.url}/api/v1/docs/")
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "unsafe-inline" not in policy
        assert "unsafe-eval" not in policy
        page.wait_for_selector(".opblock-tag-section", timeout=60_000)
        assert page.locator(".opblock-tag-section").count() > 20
        page.locator("button.authorize").first.click()
        form = page.locator(".auth-container").filter(has_text="Bearer")
        form.locator("input").fill(token)
        form.locator(".modal-btn.authorize").click()
        page.locator(".btn-done").first.click()
        page.locator("#operations-tag-sites").click()
        block = page.locator("#operations-sites-sites_list")
        block.locator(".opblock-summary-control").click()
        block.locator(".try-out__btn").click()
        block.locator(".execute").click()
        status = block.locator(".live-responses-table .response .response-col_status").first
        expect(status).to_contain_text("200", timeout=30_000)
        expect(block.locator(".live-responses-table")).to_contain_text("test-site")
        browser.close()
    assert said == []
    assert hosts == {urlsplit(live_server.url).netloc}
