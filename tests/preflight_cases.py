"""A data folder looked at, for tests of --check-data."""

from __future__ import annotations

from pathlib import Path

from data.folder import scan_data_dir
from data.preflight import CheckOptions, DataReport, check_indexes
from data.survey import survey


def checked(folder: Path, how: str = "headers", workers: int = 0, pixels: int | None = None) -> DataReport:
    indexes, findings = survey(str(folder), lambda: scan_data_dir(str(folder)), False)
    return check_indexes(indexes, CheckOptions(how, workers, "ignore", pixels), findings)
