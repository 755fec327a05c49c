"""Compiled kernels are those of the files that lie there now."""

from __future__ import annotations

import ast
from pathlib import Path

from planner import compiling
from planner.serving.kernel import advance

ROOT = Path(compiling.__file__).parent


def imported(name: str) -> set[str]:
    """Files of the planner that one of them imports names from."""
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {f"{'/'.join(module.split('.')[1:])}.py" for module in modules if module.startswith("planner.")}


def test_all_files_with_compiled_functions_and_all_that_they_import_are_named() -> None:
    names = {str(file.relative_to(ROOT)) for file in ROOT.rglob("*.py")}
    with_kernels = {name for name in names if "compiling.py" in imported(name)}
    used = {other for name in with_kernels for other in imported(name)} - {"compiling.py"}
    assert with_kernels | used == set(compiling.SOURCES)


def test_what_is_kept_on_disk_goes_by_the_content_of_all_of_them(tmp_path: Path) -> None:
    files = [tmp_path / "kernel.py", tmp_path / "part.py"]
    for file in files:
        file.write_text("ONE = 1\n", encoding="utf-8")
    before = compiling.content(files)
    assert before == compiling.content(files)
    files[1].write_text("ONE = 2\n", encoding="utf-8")
    assert compiling.content(files) != before
    assert advance.__qualname__ == f"advance_{compiling.content(ROOT / name for name in compiling.SOURCES)}"
