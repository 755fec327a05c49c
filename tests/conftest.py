"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

SERVICES_REQUIRED = os.environ.get("TONNAGE_REQUIRE_SERVICES", "") not in ("", "0")
if SERVICES_REQUIRED:  # the same examples in every run of the whole; without it each run looks further
    hypothesis.settings.register_profile("whole", hypothesis.settings.default, derandomize=True)
    hypothesis.settings.load_profile("whole")


@pytest.fixture
def data_dir(tmp_path: Path, settings: Any) -> Path:
    """A data directory of this test's own."""
    folder = tmp_path / "data"
    (folder / "static").mkdir(parents=True)
    settings.DATA_DIR = folder
    settings.STATIC_ROOT = folder / "static"
    settings.WHITENOISE_AUTOREFRESH = True  # no scan of every static file for each test client
    return folder


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With TONNAGE_REQUIRE_SERVICES=1 nothing may be skipped: a test that cannot run has failed."""
    outcome = yield
    report = outcome.get_result()
    if SERVICES_REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, but TONNAGE_REQUIRE_SERVICES is set: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for a whole module that skips itself."""
    outcome = yield
    report = outcome.get_result()
    if SERVICES_REQUIRED and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, but TONNAGE_REQUIRE_SERVICES is set: {report.longrepr}"
