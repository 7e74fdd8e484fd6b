"""The tuner plugin, compiled on first use, and the environment by which NCCL loads it."""

from __future__ import annotations

from pathlib import Path

import presage.collectives.table
from presage.collectives.c_build import compiled
from presage.collectives.table.writer import DecisionTable

SOURCES = Path(__file__).parent
TABLE_VARIABLE = "PRESAGE_INC_TABLE"
_HEADERS = Path(presage.collectives.table.__file__).parent
FLAGS = (
    "-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden",
)  # fmt: skip


def tuner_plugin() -> Path:
    """Return the compiled plugin.

    Raises
    ------
    BuildError
        As :func:`presage.collectives.c_build.compiled`.
    """
    sources = [*sorted(SOURCES.glob("*.[ch]")), *sorted(_HEADERS.glob("*.h"))]
    return compiled("libnccl-tuner-presage.so", sources, (*FLAGS, f"-I{_HEADERS}"))


def tuner_environment(table: DecisionTable) -> dict[str, str]:
    """Return the variables of a rank by which its NCCL loads the plugin and finds its table."""
    return {"NCCL_TUNER_PLUGIN": str(tuner_plugin()), TABLE_VARIABLE: str(table.path)}
