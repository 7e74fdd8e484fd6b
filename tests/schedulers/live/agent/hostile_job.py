"""Job that attacks its agent through the files it can change. Run as a program by any Python.

    python hostile_job.py SEED SECONDS VICTIM

Repeatedly replaces all files it can in its task folder, its checkpoints and its log by FIFOs,
folders, links to VICTIM, sparse files, sockets, devices, trees too deep for a path and damaged
JSON, while other processes read them. At the end it leaves FIFOs.
"""

from __future__ import annotations

# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH120, PTH123, PTH211
import contextlib
import fcntl
import os
import random
import signal
import socket
import sys
import time

GIB = 2**30
OF_TASK = (
    "progress.json", "log", "log.old", "log.first", "log.old.first", "lock", "exit.json",
    "state.json", "desired_state.json", "spec.json", "shim.log", "job",
)  # fmt: skip


def sparse(path: str) -> None:
    with open(path, "wb") as file:
        file.truncate(10 * GIB)


def deep(path: str) -> None:
    os.mkdir(path)
    folder = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)


def many(path: str) -> None:
    os.mkdir(path)
    for number in range(500):
        os.close(os.open(f"{path}/{number}", os.O_CREAT | os.O_WRONLY))


def locked(path: str) -> None:
    os.mkdir(path)
    os.mkdir(path + "/within")
    os.chmod(path, 0)


def listens(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


def writes(text: str):
    def write(path: str) -> None:
        with open(path, "w") as file:
            file.write(text)

    return write


def leased(path: str) -> None:
    """Create a file with a lease of this process, so that other processes block when opening it."""
    writes("{}")(path)
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent to break the lease; would end this process
    fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)


def makers(victim: str):
    return (
        os.mkfifo, os.mkdir, sparse, deep, many, locked, listens, leased,
        lambda path: os.symlink(victim, path),
        lambda path: os.symlink(os.path.dirname(victim), path),
        lambda path: os.symlink(path, path),
        lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),  # /dev/zero
        writes("[" * 4000), writes("9" * 4000), writes("{}"), writes('{"iterations": 1e999}'),
        writes('{"iterations": 9007199254740993, "done": -1, "done_at_s": 1e300}'),
        writes("x" * 10**6),
    )  # fmt: skip


def clear(path: str, rng: random.Random, trash: str) -> None:
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):
        os.rename(path, f"{trash}/{rng.getrandbits(64):x}")


def main() -> None:
    seed, seconds, victim = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    rng = random.Random(seed)
    progress, kept = os.environ["PRESAGE_PROGRESS"], os.environ["PRESAGE_CHECKPOINT"]
    mine = os.path.dirname(progress)
    task = os.path.dirname(mine)
    targets = [f"{task}/{name}" for name in OF_TASK]
    targets += [f"{mine}/{name}" for name in (".progress.json.1", "x" * 255)] + 5 * [progress]
    targets += [kept, f"{kept}/presage-saved.json", f"{kept}/x"]
    ways = makers(victim)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        path, make = rng.choice(targets), rng.choice(ways)
        with contextlib.suppress(OSError, ValueError):
            clear(path, rng, mine)
        with contextlib.suppress(OSError, ValueError):
            make(path)
        with contextlib.suppress(OSError):
            os.ftruncate(1, rng.choice((0, 10 * GIB)))  # the log, even if it is unlinked
    for path in (progress, f"{task}/log", f"{task}/exit.json"):
        with contextlib.suppress(OSError):
            clear(path, rng, mine)
        with contextlib.suppress(OSError):
            os.mkfifo(path)


if __name__ == "__main__":
    main()
