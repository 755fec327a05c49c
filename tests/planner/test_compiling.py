"""Compiled kernels are those of the files that lie there now."""

from __future__ import annotations

from pathlib import Path

from planner import compiling
from planner.serving.kernel import advance

ROOT = Path(compiling.__file__).parent


CONSTANTS = "serving/state.py"
"""Where the kernels' columns and codes stand: compiled into them too."""


def test_all_files_with_compiled_functions_are_named() -> None:
    with_kernels = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        if "from planner.compiling import" in file.read_text(encoding="utf-8")
    }
    assert with_kernels | {CONSTANTS} == set(compiling.SOURCES)


def test_what_is_kept_on_disk_goes_by_the_content_of_all_of_them(tmp_path: Path) -> None:
    files = [tmp_path / "kernel.py", tmp_path / "part.py"]
    for file in files:
        file.write_text("ONE = 1\n", encoding="utf-8")
    before = compiling.content(files)
    assert before == compiling.content(files)
    files[1].write_text("ONE = 2\n", encoding="utf-8")
    assert compiling.content(files) != before
    assert advance.__qualname__ == f"advance_{compiling.content(ROOT / name for name in compiling.SOURCES)}"
