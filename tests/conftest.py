"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def data_dir(tmp_path: Path, settings: Any) -> Path:
    """A data directory of this test's own."""
    folder = tmp_path / "data"
    folder.mkdir()
    settings.DATA_DIR = folder
    return folder
