"""The broker as the control plane uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.env import Env
from runners.contracts import broker_settings


def celery_settings(env: Env) -> dict[str, Any]:
    """Celery's broker settings; makes the folders of the embedded broker when the data directory allows it."""
    settings = broker_settings(env.broker_url, str(env.data_dir))
    options = settings.get("broker_transport_options", {})
    for key in ("data_folder_in", "processed_folder", "control_folder"):
        if key in options:
            Path(options[key]).mkdir(parents=True, exist_ok=True)
    return settings
