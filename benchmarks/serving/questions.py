"""Requests of the benchmark as files of bytes, and their right responses."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from presage.features.columns.schema import matrix, schema_hash
from presage.features.device.device import Device, find_device
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import QUANTITIES, required_quantities
from presage.features.tables.campaign import read_campaign
from presage.models.release.release import Release
from presage.serving.codec.wire_values import write_job
from presage.serving.oip.messages import ModelInferRequest, ModelInferResponse, message
from presage.serving.v1 import prediction_pb2 as pb

CAMPAIGN = Path("data/profiles/cpu-2-zoo")
DEVICES = ("rtx-3090", "v100-16gb", "a100-40gb", "cpu-2")
JOBS, BATCH_ROWS = 1000, 1024
# Those that every release predicts.
SOLO_MODELS = tuple(name for name, one in required_quantities().items() if one.scope == "solo")
INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT, PREDICT_MATRIX = (
    f"/presage.v1.PredictionService/{method}" for method in ("Predict", "PredictMatrix")
)
INVOCATIONS = "/invocations"
COUNTER = b"00000000"
# Builds of ONNX Runtime add in different orders.
RELATIVE_TOLERANCE = 1e-4

# Whether an answer's bytes are right; raises what is wrong.
Check = Callable[[bytes], None]


@dataclass(frozen=True)
class Question:
    """Request with its right response.

    Attributes
    ----------
    body, framed : Path
        The message; and with the five bytes before it that gRPC puts on the wire (of HTTP: the
        same file).
    rows_file : Path, optional
        For Triton's client: the matrix itself.
    counter_at : int, optional
        Where eight digits are in the body that make a request another one.
    """

    method: str
    body: Path
    framed: Path
    check: Check
    rows: int = 1
    rows_file: Path | None = None
    counter_at: int | None = None


@dataclass(frozen=True)
class Questions:
    """All requests; ``*_rows`` is of the smallest batch and of a large one, in both protocols."""

    infer: Question
    infer_rows: Question
    invoke: Question
    invoke_rows: Question
    predict: Question
    predict_again: Question  # the same, without a counter
    predict_many: Question
    predict_matrix: Question
    all_rows: Path  # of predict_many, as float32
    placements: Path  # each pickled: every job once, on the first device


def write_questions(folder: Path, release: Release, model: str) -> Questions:
    """Write them into a folder."""
    jobs = thousand_jobs()
    devices = [find_device(kind, release.devices) for kind in DEVICES]
    placements = [Placement(job, device) for job in jobs for device in devices]
    rows = matrix(placements).astype("<f4")
    all_rows = folder / "all_rows.npy"
    np.save(all_rows, rows)
    pickled = folder / "placements.pickle"
    # One by one: what is read back shares nothing.
    single_device = [pickle.dumps(placement) for placement in placements[:: len(devices)]]
    pickled.write_bytes(pickle.dumps(single_device))
    quantiles = {name: run_model(release, name, rows) for name in SOLO_MODELS}
    one, many = rows[:1], rows[:BATCH_ROWS]
    expected = quantiles[model]
    ask = _Writer(folder)
    predict = ask.predict(
        "predict", [numbered(jobs[0])], devices[:1], release, _first(quantiles, 1)
    )
    return Questions(
        infer=ask.infer(model, one, expected[:1]),
        infer_rows=ask.infer(model, many, expected[:BATCH_ROWS]),
        invoke=ask.invoke(one, expected[:1]),
        invoke_rows=ask.invoke(many, expected[:BATCH_ROWS]),
        predict=replace(predict, counter_at=predict.body.read_bytes().index(COUNTER)),
        predict_again=predict,
        predict_many=ask.predict("predict_many", jobs, devices, release, quantiles),
        predict_matrix=ask.matrix(placements, rows, quantiles),
        all_rows=all_rows,
        placements=pickled,
    )


def thousand_jobs() -> list[JobFeatures]:
    """Return the campaign's jobs, repeated, each as a job of its own."""
    found = list(read_campaign(CAMPAIGN).jobs.values())
    jobs = (found[i % len(found)] for i in range(JOBS))
    return [
        replace(features, job=replace(features.job, job_id=f"job-{i}"))
        for i, features in enumerate(jobs)
    ]


def numbered(features: JobFeatures) -> JobFeatures:
    """Return the job with a counter in its name."""
    return replace(features, job=replace(features.job, job_id=f"job-{COUNTER.decode()}"))


def run_model(release: Release, name: str, rows: Any) -> Any:
    """Return the output of the ONNX file itself."""
    session = ort.InferenceSession(
        str(release.model_path(name)), providers=["CPUExecutionProvider"]
    )
    return session.run(["quantiles"], {"features": rows})[0]


def same(answer: Any, expected: Any, what: str) -> None:
    """Raise where an answer is not what the ONNX file itself says."""
    if answer.shape != expected.shape or not np.allclose(answer, expected, rtol=RELATIVE_TOLERANCE):
        raise SystemExit(f"{what}: the answer is wrong: {answer} instead of {expected}")


def _first(quantiles: dict[str, Any], count: int) -> dict[str, Any]:
    return {name: values[:count] for name, values in quantiles.items()}


class _Writer:
    """Writes requests into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def infer(self, model: str, rows: Any, expected: Any) -> Question:
        """Return ModelInfer of a matrix as raw contents, as Triton's client sends it."""
        tensor = message("ModelInferRequest.InferInputTensor")
        request = ModelInferRequest(
            model_name=model,
            inputs=[tensor(name="features", datatype="FP32", shape=rows.shape)],
            raw_input_contents=[rows.tobytes()],
        )
        rows_file = self._folder / f"rows-{len(rows)}.npy"
        np.save(rows_file, rows)

        def check(answer: bytes) -> None:
            (raw,) = ModelInferResponse.FromString(answer).raw_output_contents
            same(np.frombuffer(raw, "<f4").reshape(len(rows), -1), expected, "ModelInfer")

        name = f"infer-{len(rows)}"
        return self._question(name, INFER, request, check, len(rows), rows_file)

    def invoke(self, rows: Any, expected: Any) -> Question:
        """Return the same request as JSON, as MLflow's scoring server takes it."""
        body = self._folder / f"invoke-{len(rows)}.json"
        body.write_text(json.dumps({"inputs": rows.tolist()}))

        def check(answer: bytes) -> None:
            found = np.array(json.loads(answer)["predictions"]["quantiles"], "<f4")
            same(found, expected, "/invocations")

        return Question(INVOCATIONS, body, body, check, len(rows))

    def predict(
        self, name: str, jobs: Sequence[JobFeatures], devices: Sequence[Device], release: Release,
        quantiles: dict[str, Any],
    ) -> Question:  # fmt: skip
        """Predict of every job on every device, the devices by their kinds."""
        request = pb.PredictRequest(
            jobs=[write_job(job) for job in jobs],
            devices=[pb.Device(kind=device.kind) for device in devices],
        )
        median = release.levels.index(0.5)

        def check(answer: bytes) -> None:
            forecasts = pb.PredictResponse.FromString(answer).forecasts
            for quantity in map(QUANTITIES.__getitem__, SOLO_MODELS):
                field = quantity.forecast_field
                found = np.array([getattr(row, field).median for row in forecasts])
                same(found, quantiles[quantity.name][:, median], f"Predict, {field}")

        return self._question(name, PREDICT, request, check, len(jobs) * len(devices))

    def matrix(self, placements: Sequence[Placement], rows: Any, quantiles: Any) -> Question:
        """Return PredictMatrix of rows that are computed already."""
        of_kind = {kind: place for place, kind in enumerate(DEVICES)}
        request = pb.PredictMatrixRequest(
            schema_hash=schema_hash(),
            features=rows.tobytes(),
            device_kinds=DEVICES,
            device_index=[of_kind[placement.device.kind] for placement in placements],
            iterations=[placement.job.job.iterations for placement in placements],
        )

        def check(answer: bytes) -> None:
            response = pb.PredictMatrixResponse.FromString(answer)
            median = list(response.levels).index(0.5)
            found = np.frombuffer(response.memory_bytes, "<f8").reshape(len(rows), -1)
            same(found[:, median], quantiles["memory"][:, median], "PredictMatrix")

        return self._question("predict_matrix", PREDICT_MATRIX, request, check, len(rows))

    def _question(
        self, name: str, method: str, request: Any, check: Check, rows: int,
        rows_file: Path | None = None,
    ) -> Question:  # fmt: skip
        content = request.SerializeToString()
        body, framed = self._folder / f"{name}.bin", self._folder / f"{name}.framed"
        body.write_bytes(content)
        framed.write_bytes(b"\0" + len(content).to_bytes(4, "big") + content)
        return Question(method, body, framed, check, rows, rows_file)
