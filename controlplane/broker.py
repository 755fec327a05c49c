"""The broker as the control plane uses it."""

from __future__ import annotations

from typing import Any

from controlplane.env import Env, EnvError
from runners.broker import broker_settings


def celery_settings(env: Env) -> dict[str, Any]:
    """Celery's broker settings; the embedded broker keeps its messages in the data directory.

    Raises EnvError when that directory cannot be written.
    """
    try:
        return broker_settings(env.broker_url or "filesystem://", env.data_dir)
    except OSError as error:
        raise EnvError(
            f"The data directory {env.data_dir} cannot be used: {error.strerror}. "
            "Make it writable, or set TONNAGE_DATA_DIR to a directory that is."
        ) from error
