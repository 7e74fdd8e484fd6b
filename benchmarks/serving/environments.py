"""Virtual environments: one for what Presage's server needs, one for each peer, one for clients.

They are made once, in a folder of caches; when what is to be in one changes, another is made.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("~/.cache/presage/peers").expanduser()
ONNXRUNTIME = "onnxruntime==1.31.1"
# The packages that a server's speed depends on, besides its own.
COMMON = ("numpy==2.4.6", "grpcio==1.85.1", "protobuf==6.33.6")
PACKAGES: dict[str, tuple[str, ...]] = {
    "presage": (".[serve]",),
    "client": ("tritonclient[grpc]==2.73.0", *COMMON),
    "kserve": ("kserve==0.21.0", ONNXRUNTIME, *COMMON, "uvicorn==0.54.0", "uvloop==0.23.0"),
    "mlserver": ("mlserver==1.7.1", ONNXRUNTIME, *COMMON, "uvicorn==0.54.0", "uvloop==0.23.0"),
    "mlflow": ("mlflow==3.17.2", ONNXRUNTIME, "numpy==2.4.6", "onnx==1.23.2", "uvicorn==0.54.0"),
    # Of benchmarks.elastic; torch is the version that the project pins.
    "torchft": ("torchft==0.2.0", "torch==2.13.0", "numpy==2.4.6"),
}
# Files that what is installed depends on. With the versions that the tests run with.
LOCK = "requirements.lock"
DEPENDS_ON = {"presage": ("pyproject.toml", LOCK)}
TOOLS = {"pip", "setuptools", "wheel"}  # of every environment, and no server's
LIST = """
import json, importlib.metadata as m
print(json.dumps({d.metadata["Name"].lower(): d.version for d in m.distributions()}))
"""


@dataclass(frozen=True)
class Environment:
    """Virtual environment.

    Attributes
    ----------
    packages : dict of str to str
        Version of each package that a server's image would have, by name.
    """

    name: str
    folder: Path
    packages: dict[str, str]

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")


def environment(name: str) -> Environment:
    """Return the environment; create it first if it is missing, which may take minutes."""
    files = [Path(path).read_text() for path in DEPENDS_ON.get(name, ())]
    spec = json.dumps([sys.version, PACKAGES[name], files])
    # Each checkout has its own where they want different ones, and takes it away from no other.
    folder = FOLDER / f"{name}-{hashlib.sha256(spec.encode()).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    with (folder.with_suffix(".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
        if not done.is_file():
            _say(f"making the environment {name} in {folder}")
            _run(sys.executable, "-m", "venv", "--clear", str(folder))
            wants = PACKAGES[name]
            if LOCK in DEPENDS_ON.get(name, ()):
                wants = (*wants, "--constraint", str(_constraints(folder)))
            _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *wants)
            done.touch()
    listed = _run(str(folder / "bin" / "python"), "-c", LIST)
    packages = {k: v for k, v in json.loads(listed).items() if k not in TOOLS}
    return Environment(name, folder, packages)


def _constraints(folder: Path) -> Path:
    """Write the lock's versions without its hashes, which a checkout could not be installed by."""
    path = folder / "constraints.txt"
    pins = re.findall(r"^[^\s#]\S*==.*?(?= \\$)", Path(LOCK).read_text(), re.MULTILINE)
    path.write_text("\n".join(pins))
    return path


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
