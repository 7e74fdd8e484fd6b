"""Features of a job as one environment variable, which ``presage slurm sbatch`` sets."""

from __future__ import annotations

import base64
import binascii
import zlib

from google.protobuf.message import DecodeError

from presage.errors import InvalidJobError, one_line
from presage.features.job.job_description import JobFeatures
from presage.serving.codec.wire_values import read_job, write_job
from presage.serving.v1 import prediction_pb2 as pb

# sbatch passes variables with this prefix on whatever its --export says.
FEATURES_VARIABLE = "SLURM_PRESAGE_JOB"
OPTIONS_VARIABLE = "SLURM_PRESAGE_OPTIONS"
MAX_TEXT = 120_000  # Linux limits a variable to 128 KiB
MAX_MESSAGE_BYTES = 2 * 1024 * 1024


def to_text(features: JobFeatures) -> str:
    """Return the features as text for the variable.

    Raises
    ------
    InvalidJobError
        The text would be longer than ``MAX_TEXT``.
    """
    raw = write_job(features).SerializeToString(deterministic=True)
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    if len(text) > MAX_TEXT:
        raise InvalidJobError(
            f"the features of {features.job.name!r} take {len(text)} characters, at most "
            f"{MAX_TEXT} fit into a job's environment; submit the job with sbatch instead"
        )
    return text


def to_message(text: str) -> bytes:
    """Return the serialized ``presage.v1.Job`` of a text, unchecked.

    Raises
    ------
    InvalidJobError
        It is too long, not such a text, or would be larger than ``MAX_MESSAGE_BYTES``.
    """
    if len(text) > MAX_TEXT:
        raise InvalidJobError(f"features: {len(text)} characters, at most {MAX_TEXT} are allowed")
    try:
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(base64.b64decode(text, validate=True), MAX_MESSAGE_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise InvalidJobError(f"features: not encoded features ({one_line(error)})") from error
    if not unpacking.eof:
        raise InvalidJobError(f"features: cut off, or larger than {MAX_MESSAGE_BYTES} bytes")
    return raw


def to_features(message: bytes) -> JobFeatures:
    """Return the features of a serialized ``presage.v1.Job``.

    Raises
    ------
    InvalidJobError
        The bytes are no such message, or no job that can exist.
    """
    try:
        row = pb.Job.FromString(message)
    except DecodeError as error:
        raise InvalidJobError("features: not a job's message") from error
    return read_job(row, "job")
