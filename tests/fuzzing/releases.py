"""Releases for the fuzzers: one that is served, with edits, and signed again.

A sample is a list of edits in JSON, so that it outlives changes of the features: the release is
rebuilt, its manifest and models are changed, and hashes and id are computed from the result.
Otherwise the loader would reject all samples for their digests.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import onnx

from presage.errors import ReleaseError
from presage.features.device.device import Share
from presage.features.placement import Placement
from presage.models.release.release import MANIFEST
from presage.models.release.release_id import content_id
from presage.serving.codec import wire_values
from presage.serving.predictor.predictor import Predictor
from presage.serving.predictor.served_release import Served
from presage.serving.server.prometheus_metrics import Metrics
from tests.fuzzing.json_edits import an_edit, edited
from tests.fuzzing.messages import bytes_mutated, mutated
from tests.fuzzing.reader import Reader, Sample
from tests.serving.conftest import MEASURED, make_job, make_models, make_release

_ID = "@@id@@"


@cache
def _base() -> tuple[dict[str, Any], Predictor]:
    release = make_release(Path(mkdtemp()) / "release")
    return json.loads((release.folder / MANIFEST).read_text()), Predictor(release)


def _seeds() -> list[Sample]:
    return [_sample([])]


def _sample(edits: Sequence[dict[str, Any]]) -> Sample:
    return Sample(".json", json.dumps({"edits": edits}, indent=1).encode())


# Changes ---------------------------------------------------------------------------------------


def _mutated(sample: Sample, _donors: Sequence[Sample], rng: random.Random) -> Sample:
    edits = json.loads(sample.content)["edits"][-3:]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edits.append(_model_edit(rng) if rng.random() < 0.3 else an_edit(_base()[0], rng))
    return _sample(edits)


def _model_edit(rng: random.Random) -> dict[str, Any]:
    models = make_models()
    name = rng.choice(list(models))
    if rng.random() < 0.2:
        content = bytes_mutated(models[name], list(models.values()), rng)
    else:
        parsed = {key: onnx.ModelProto.FromString(model) for key, model in models.items()}
        content = mutated(parsed[name], list(parsed.values()), rng).SerializeToString()
    return {"model": name, "content": base64.b64encode(content).decode()}


# The way of a release that a server is offered ---------------------------------------------------


def read(path: Path) -> None:
    """As ``presage serve`` does: load, check, warm up, ask the probes, then answer."""
    folder = path.parent / "edited"
    folder.mkdir(exist_ok=True)
    _write(folder, json.loads(path.read_bytes())["edits"])
    served = Served(Metrics())
    served.offer(folder)
    predictor = served.predictor
    job = make_job()
    predictor.predict([Placement(job, MEASURED), Placement(job, MEASURED, Share(0.5))])
    info = predictor.release()
    wire_values.write_release(info, list(info.devices.values())).SerializeToString()
    assert predictor.served_models.models


def _write(folder: Path, edits: Sequence[dict[str, Any]]) -> None:
    """The release with its edits, its hashes right."""
    models = make_models()
    models |= {e["model"]: base64.b64decode(e["content"]) for e in edits if "model" in e}
    for name, content in models.items():
        (folder / f"{name}.onnx").write_bytes(content)
    manifest = copy.deepcopy(_base()[0])
    manifest["release_id"] = _ID
    for name in models:
        manifest["predictors"][name]["sha256"] = hashlib.sha256(models[name]).hexdigest()
    text = edited(manifest, [edit for edit in edits if "at" in edit])
    try:
        release_id = content_id(json.loads(text))
    except (
        ValueError,
        RecursionError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # no manifest at all: nothing to sign
        release_id = "0" * 12
    (folder / MANIFEST).write_text(text.replace(_ID, release_id))


def _smaller(sample: Sample) -> Iterator[Sample]:
    edits = json.loads(sample.content)["edits"]
    if len(edits) > 1:
        for i in range(len(edits)):
            yield _sample([*edits[:i], *edits[i + 1 :]])


RELEASE = Reader(_seeds, _mutated, read, (ReleaseError,), _smaller)
