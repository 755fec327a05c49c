"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def data_dir(tmp_path: Path, settings: Any) -> Path:
    """A data directory of this test's own."""
    folder = tmp_path / "data"
    (folder / "static").mkdir(parents=True)
    settings.DATA_DIR = folder
    settings.STATIC_ROOT = folder / "static"
    settings.WHITENOISE_AUTOREFRESH = True  # no scan of every static file for each test client
    return folder
