"""Folders hold few modules, so that a reader finds a module by the names of the folders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_MODULES = 15  # of a folder, its __init__.py included
FOLDERS = (
    *("features", "models", "pipelines", "serving", "schedulers", "training", "collectives"),
    *("placement", "src", "tests", "benchmarks"),
)


def test_no_folder_holds_many_modules():
    modules = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    counts = Counter(path.parent.relative_to(ROOT) for path in modules if "_pb2" not in path.name)

    assert len(counts) > len(FOLDERS)
    assert {str(folder): n for folder, n in counts.items() if n > MAX_MODULES} == {}
