"""Presage installed from its wheel into an environment that holds what an extra declares, offline.

The environment's packages are links to those that these tests run with; ``presage`` itself is the
wheel's. So a package that an extra forgets is missing there too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCES = (
    "src", "features", "models", "pipelines", "schedulers", "serving", "training", "collectives",
    "placement", "data/pretrained",
)  # fmt: skip
FILES = ("pyproject.toml", "README.md", "LICENSE")


def copy_sources(folder: Path) -> Path:
    """Copy what a wheel is built from, links as links: a build writes into its folder."""
    for name in SOURCES:
        shutil.copytree(
            ROOT / name,
            folder / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def build_wheel(sources: Path, to: Path) -> Path:
    """Build the wheel with the setuptools of this environment."""
    _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(to), str(sources))
    (wheel,) = to.glob("presage-*.whl")
    return wheel


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """Install the wheel, and link what these extras need; return the folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    packages = next((folder / "lib").glob("python*/site-packages"))
    for name in requirements("presage", extras):
        for entry in _top_level(name):
            target = packages / entry.name
            if not target.exists():
                target.symlink_to(entry)
    return folder / "bin"


def requirements(name: str, extras: tuple[str, ...]) -> set[str]:
    """Names of all distributions that a distribution with these extras needs."""
    found: set[str] = set()
    visited: set[tuple[str, str]] = set()
    pending = [(name, extra) for extra in ("", *extras)]
    while pending:
        current = pending.pop()
        if current in visited:
            continue
        visited.add(current)
        for text in distribution(current[0]).requires or ():
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": current[1]}):
                continue
            key = canonicalize_name(needed.name)
            found.add(key)
            pending += [(key, extra) for extra in ("", *needed.extras)]
    return found - {name}


def _top_level(name: str) -> set[Path]:
    """Files and folders of a distribution right in the folder of packages."""
    packages = Path(sysconfig.get_path("purelib"))
    parts = {file.parts[0] for file in distribution(name).files or ()}
    return {packages / part for part in parts if part not in {"..", "__pycache__"}}


def clean_environment(home: Path) -> dict[str, str]:
    """Return a user's variables: nothing leads to this checkout, and the home folder is empty."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    return kept | {"HOME": str(home), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if arguments[0] == "--python":
        command, arguments = [*command, *arguments[:2]], arguments[2:]
    subprocess.run([*command, *arguments], check=True, timeout=300, cwd="/")
