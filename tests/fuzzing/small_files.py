"""What else is read from outside: a job's features in JSON, a server's tokens, an outcome log."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from presage.errors import ConfigError, InvalidJobError, OutcomeLogError
from presage.serving.authentication.callers import ROLES
from presage.serving.authentication.token_file import new_token, read_tokens
from presage.serving.client.job_features import make_job_features, to_json
from presage.serving.codec.wire_values import write_job
from presage.serving.outcomes.outcome_log import OutcomeLog, read_outcomes
from tests.fuzzing.json_edits import an_edit, edited
from tests.fuzzing.messages import bytes_mutated
from tests.fuzzing.reader import Reader, Sample
from tests.serving.conftest import make_job


def _mutated_bytes(sample: Sample, donors: Sequence[Sample], rng: random.Random) -> Sample:
    contents = [donor.content for donor in donors]
    return Sample(sample.suffix, bytes_mutated(sample.content, contents, rng))


def _mutated_json(sample: Sample, donors: Sequence[Sample], rng: random.Random) -> Sample:
    if rng.random() < 0.3:
        return _mutated_bytes(sample, donors, rng)
    # As protobuf has it, or as before it.
    whole = json.loads(to_json(make_job())) if rng.random() < 0.5 else asdict(make_job())
    edits = [an_edit(whole, rng) for _ in range(rng.choice((1, 1, 2)))]
    return Sample(sample.suffix, edited(whole, edits).encode())


def _read_job(path: Path) -> None:
    write_job(make_job_features(path))


def _token_file() -> bytes:
    bound = {"node": "n0", "devices": "cpu-2:1", "expires": "2027-01-31T12:00:00Z"}
    lines = (new_token(role, [role], bound)[1] for role in ROLES)
    return "\n".join(["# callers", *lines, ""]).encode()


@cache
def _outcome_log() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        log = OutcomeLog(path)
        for number in range(20):
            log.append([(f"key-{number}", bytes(100))], reported_by="x").result()
        log.close()
        return path.read_bytes()


def _read_log(path: Path) -> None:
    for name in ("-wal", "-shm"):  # of the input before this one
        path.with_name(path.name + name).unlink(missing_ok=True)
    list(read_outcomes(path))


JOB = Reader(
    lambda: [Sample(".json", to_json(make_job()).encode())],
    _mutated_json,
    _read_job,
    (InvalidJobError,),
)
TOKENS = Reader(lambda: [Sample("", _token_file())], _mutated_bytes, read_tokens, (ConfigError,))
OUTCOMES = Reader(
    lambda: [Sample(".db", _outcome_log())], _mutated_bytes, _read_log, (OutcomeLogError,)
)
