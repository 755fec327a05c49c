"""The broker as the control plane uses it."""

from __future__ import annotations

from typing import Any

from controlplane.env import Env
from runners.broker import FILESYSTEM_SCHEME, broker_settings


def celery_settings(env: Env) -> dict[str, Any]:
    """Celery's settings of the broker that control plane and node workers share.

    Raises OSError when the embedded broker's directory cannot be written.
    """
    return broker_settings(env.broker_url or f"{FILESYSTEM_SCHEME}://", env.data_dir)
