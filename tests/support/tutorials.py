"""Code blocks of a tutorial: files to save, and commands with the output that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/tutorials"
_SAVED = ("python", "text")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class File:
    """A block to save: its first line is a comment with the name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, with its output on the page."""

    line: str
    output: str


def steps(page: str) -> Iterator[File | Command]:
    """Yield the files and commands of a page in its order."""
    for language, text in _BLOCK.findall((PAGES / page).read_text()):
        if language in _SAVED and (name := re.match(r"# (\w+\.\w+)\n", text)):
            yield File(name[1], text)
        elif language == "console":
            joined = re.sub(r"\\\n *", "", text)
            for part in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                yield Command(line, output)


def environment(**variables: str) -> Mapping[str, str]:
    """Return the environment of a reader in a terminal of 100 columns, with `presage` on PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    places = f"{ROOT / 'src'}:{ROOT}"
    return os.environ | {"PATH": path, "COLUMNS": "100", "PYTHONPATH": places} | variables


def run(line: str, folder: Path, **variables: str) -> str:
    """Run a command of a page in a folder, and return its output and errors together."""
    line = re.sub(r"^presage ", f"{sys.executable} -m presage ", line)
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment(PYTHONPATH=f"{folder}:{ROOT}:{ROOT}/src",
        **variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}"
    return done.stdout
