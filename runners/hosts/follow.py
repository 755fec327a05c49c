"""Following an engine's log while it grows and rotates."""

from __future__ import annotations

from pathlib import Path

from runners.engines.base import clean_lines

START_MARK = "--- "
MAX_READ = 4 * 2**20


class LogFollower:
    """New lines of a log since the last call. A line counts when its end is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = 0
        self._rest = ""

    def new_lines(self) -> list[str]:
        """Lines that came since the last call; [] when there is no log."""
        try:
            status = self.path.stat()
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset, self._rest = status.st_ino, 0, ""
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read(MAX_READ)
        except OSError:
            return []
        self._offset += len(data)
        text = self._rest + data.decode("utf-8", "replace")
        whole, newline, self._rest = text.rpartition("\n")
        return clean_lines(whole) if newline else []


def run_lines(path: Path) -> list[str]:
    """All lines of the engine's present run, the rotated part included; [] when there is no log."""
    lines: list[str] = []
    for part in (path.with_name(path.name + ".1"), path):
        try:
            lines += clean_lines(part.read_bytes()[-MAX_READ:].decode("utf-8", "replace"))
        except OSError:
            continue
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(START_MARK) and lines[index].endswith(" start"):
            return lines[index + 1 :]
    return lines
