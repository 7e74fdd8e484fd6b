"""The C aggregator, compiled on first use into a cache folder."""

from __future__ import annotations

from pathlib import Path

from presage.collectives.c_build import compiled

SOURCES = Path(__file__).with_name("aggregator")
FLAGS = ("-std=c11", "-O2", "-ftree-vectorize", "-Wall", "-Wextra", "-Werror=format-security")


def aggregator_program() -> Path:
    """Return the compiled aggregator.

    Raises
    ------
    BuildError
        As :func:`presage.collectives.c_build.compiled`.
    """
    return compiled("aggregator", sorted(SOURCES.glob("*.[ch]")), FLAGS)
