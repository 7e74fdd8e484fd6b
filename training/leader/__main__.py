"""Leader process of one elastic job: ``python -m presage.training.leader --job NAME --state DIR``.

It reads ``DIR/NAME/job.json``, and continues from ``DIR/NAME/journal.jsonl`` if that exists. The
exit status is 0 if the job is done, 4 if it failed, 75 if it is suspended because all its workers
left, and 3 if it has not ended: the leader was stopped, or had no worker for a long time. It is 1
if the leader could not start or crashed; started again, it continues from its journal.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from presage.errors import ElasticError, PresageError, one_line
from presage.system.text.printable import error_line
from presage.training.job_folder import FAILED, SUSPENDED, UNFINISHED, JobFolder
from presage.training.job_management import Leader
from presage.training.leader.job_config import read_config
from presage.training.leader.journal import Journal
from presage.training.leader.server import LeaderServer


def main(argv: list[str] | None = None) -> int:
    """Run the leader of a job until the job ends; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m presage.training.leader", description="Leader of an elastic job."
    )
    parser.add_argument("--job", required=True, help="Name of the job.")
    parser.add_argument("--state", required=True, type=Path, help="Folder of elastic jobs.")
    args = parser.parse_args(argv)
    try:
        folder = JobFolder(args.state, args.job)
        config = read_config(folder.config)
        folder.create()
        with _lock(folder):
            leader = Leader(folder.job, config, Journal(folder.journal), _log)
            asyncio.run(LeaderServer(leader, folder).run())
    except (PresageError, OSError) as error:
        sys.stderr.write(f"error: {error_line(error)}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return {"done": 0, "failed": FAILED, "suspended": SUSPENDED}.get(leader.outcome, UNFINISHED)


def _log(line: str) -> None:
    sys.stdout.write(f"{one_line(line)}\n")
    sys.stdout.flush()


@contextmanager
def _lock(folder: JobFolder) -> Iterator[None]:
    """Hold the lock of a job's leader; a killed process releases it."""
    descriptor = os.open(folder.path / "leader.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ElasticError(
                f"job {folder.job!r} has a leader already; see `presage elastic status`"
            ) from None
        yield
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
