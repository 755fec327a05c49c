"""Celery settings of the broker, the same for the control plane and the node workers.

Any Celery broker URL works. ``filesystem://`` keeps the messages as files under ``<data dir>/broker`` on one host;
its transport is kombu's with two repairs: a message becomes visible only when it is written wholly (kombu's own writes
in place, so a reader may take half a message), and one that cannot be read is set aside instead of ending the worker.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from queue import Empty
from time import time_ns
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem, virtual
from kombu.utils.encoding import bytes_to_str, str_to_bytes
from kombu.utils.json import dumps, loads

FILESYSTEM_SCHEME = "filesystem"
POLL_S = 0.1


class Channel(filesystem.Channel):
    """Filesystem channel with atomic writes. Files are ``<time ns>_<uuid>.<queue>.msg``."""

    def _put(self, queue: str, payload: Any, **_kwargs: Any) -> None:  # type: ignore[override]
        """Write one message; raises ChannelError when the directory cannot be written."""
        name = f"{time_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        folder = Path(self.data_folder_out)
        part = folder / f".{name}.part"
        try:
            with part.open("wb") as stream:
                stream.write(str_to_bytes(dumps(payload)))
            part.replace(folder / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ChannelError(f"Cannot write a message to {folder}: {error.strerror}") from error

    def _get(self, queue: str, timeout: Any = None) -> Any:
        """Take the oldest message of ``queue``; raises Empty when there is none."""
        folder = Path(self.data_folder_in)
        suffix = f"{queue}.msg"
        names = sorted(name for name in os.listdir(folder) if name.partition(".")[2] == suffix)
        for name in names:
            taken = folder / f".{name}.{uuid.uuid4().hex}.taken"
            try:
                (folder / name).rename(taken)  # atomic: one reader wins
            except OSError:
                continue
            try:
                message = loads(bytes_to_str(taken.read_bytes()))
            except (OSError, ValueError):
                taken.rename(folder / f".{name}.unreadable")
                continue
            taken.unlink()
            return message
        raise Empty


class Transport(filesystem.Transport):
    """kombu transport ``filesystem://`` with the channel above.

    Each connection keeps its own record of bindings: kombu shares one between all, and drops the messages of a second
    data directory because it takes their queue for bound.
    """

    Channel = Channel

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state = virtual.BrokerState()


def broker_settings(url: str, data_dir: Path) -> dict[str, Any]:
    """Celery settings (lower-case names) for broker ``url``; makes the directories of the filesystem broker.

    Raises OSError when ``data_dir`` cannot be written.
    """
    settings: dict[str, Any] = {
        "broker_url": url,
        "broker_connection_retry_on_startup": True,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
    }
    if url.split(":", 1)[0] != FILESYSTEM_SCHEME:
        return settings
    TRANSPORT_ALIASES[FILESYSTEM_SCHEME] = f"{__name__}:Transport"
    messages, control = data_dir / "broker" / "messages", data_dir / "broker" / "control"
    messages.mkdir(parents=True, exist_ok=True)
    control.mkdir(parents=True, exist_ok=True)
    settings["broker_transport_options"] = {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        "polling_interval": POLL_S,
    }
    return settings
