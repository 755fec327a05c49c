"""Where the accuracy benchmarks read measurements from."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import pytest

from benchmarks.accuracy.rows import measurements, offline_rows, read_table, serving_rows


def test_a_folder_of_other_measurements_is_read_instead(tmp_path: Path) -> None:
    table = read_table("serving_results")
    known = {row.row_id for row in serving_rows()}
    kept = [row for row in table if row["row_id"] in known][:3]
    with (tmp_path / "serving_results.csv").open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(table[0]))
        writer.writeheader()
        writer.writerows(kept)
    folder = measurements(str(tmp_path))
    assert [row.row_id for row in serving_rows(folder=folder)] == [row["row_id"] for row in kept]
    assert offline_rows(folder) == []


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="holds no serving_results"):
        measurements(str(tmp_path))
