import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from presage.errors import InvalidJobError, ReleaseError
from presage.features.columns.schema import matrix
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import QUANTITIES, solo_quantities
from presage.models.calibration.training_domain import fit_domain
from presage.models.release.probes import Probes
from presage.models.release.release import MANIFEST, load_release
from presage.models.release.release_content import ReleaseContent, write_release
from presage.models.release.release_id import content_id
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.stages.build_release import training_colocations
from presage.system.files import atomic_folder
from tests.features.examples import device, features, node

PLACED = [Placement(features(node()), device())]
DOMAIN = fit_domain(matrix(PLACED), ["net"], ["fp32"])
PROBES = Probes(
    matrix(PLACED).astype(np.float32),
    ((0, 0),),
    {name: np.arange(5.0)[np.newaxis] for name in solo_quantities()}
    | {"interference": np.ones((2, 5))},
)
MODELS = {name: f"the {name} model".encode() for name in QUANTITIES}


def write(folder, **changes):
    values: dict[str, Any] = dict(
        models=MODELS, levels=(0.05, 0.1, 0.5, 0.9, 0.95), devices=[device()],
        trained_devices={key: ["example"] for key in QUANTITIES}, max_members={"gpu": 3},
        domains={"gpu": DOMAIN},
        trained_releases={"gpu": {12.0, 23.0}},
        novelty_margins={name: {"device": {"gpu": {0.1: 0.5}}} for name in QUANTITIES},
        setup_s={"": [1, 2, 3, 4, 5]}, probes=PROBES,
        metrics={"memory": {}}, data_digest="d", versions={"torch": "2"},
    )  # fmt: skip
    return write_release(folder, ReleaseContent(**(values | changes)))


def refused(folder, match):
    with pytest.raises(ReleaseError, match=match) as caught:
        load_release(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_release_of_format_6_has_one_margin_for_jobs_and_devices(tmp_path):
    write(tmp_path / "release")
    path = tmp_path / "release" / "release.json"
    content = json.loads(path.read_text())
    del content["novelty_margins"], content["trained_releases"]
    content |= {"format": 6, "stranger_margins": {n: {"gpu": {"0.1": 0.5}} for n in QUANTITIES}}
    path.write_text(json.dumps(content | {"release_id": content_id(content)}))
    release = load_release(tmp_path / "release")

    same = {"gpu": {0.1: 0.5}}
    assert release.novelty_margins["memory"] == {"job": same, "device": same}
    assert release.trained_releases == {}


def test_an_unknown_novelty_is_rejected(tmp_path):
    with pytest.raises(ReleaseError, match="none of job, device, release"):
        write(tmp_path / "release", novelty_margins={n: {"weather": {}} for n in QUANTITIES})


def test_a_written_release_is_loaded(tmp_path):
    release = write(tmp_path / "release")

    assert release.trained_releases == {"gpu": {12.0, 23.0}}
    assert release.novelty_margins["memory"] == {"device": {"gpu": {0.1: 0.5}}}

    assert load_release(tmp_path / "release").manifest == release.manifest
    assert release.devices["example"] == device()
    assert (release.max_members, release.trained_devices["memory"]) == ({"gpu": 3}, {"example"})
    assert release.domains["gpu"].precisions == {"fp32"}
    assert release.model_path("memory").read_bytes() == MODELS["memory"]


def test_the_id_depends_on_the_content(tmp_path):
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    other = write(tmp_path / "three", models=MODELS | {"memory": b"another"})

    assert one.release_id == two.release_id != other.release_id


def test_writing_again_replaces_the_folder(tmp_path):
    write(tmp_path / "release")
    (tmp_path / "release" / "stray").touch()
    write(tmp_path / "release")

    assert sorted(p.name for p in tmp_path.iterdir()) == ["release"]
    assert not (tmp_path / "release" / "stray").exists()


@pytest.fixture
def break_at(monkeypatch):
    """Let the n-th call (from 0) of a function of os or a method of Path raise."""

    def arrange(owner, name, n, error):
        real, calls = getattr(owner, name), iter(range(99))

        def call(*arguments, **named):
            if next(calls) == n:
                raise error
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    return arrange


def test_a_release_is_replaced_atomically_if_the_system_can(tmp_path, monkeypatch):
    write(tmp_path / "release")
    monkeypatch.setattr(Path, "rename", None)  # none is needed

    new = write(tmp_path / "release", data_digest="another")

    assert load_release(tmp_path / "release") == new
    assert [path.name for path in tmp_path.iterdir()] == ["release"]


@pytest.fixture
def no_swap(monkeypatch):
    """Make swapping two folders unsupported."""
    monkeypatch.setattr(atomic_folder, "swapped", lambda one, other: False)


@pytest.mark.usefixtures("no_swap")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize(
    ("owner", "name", "n"),  # a file, a file, the old folder away, the new one in place
    [(os, "open", 0), (os, "open", 3), (Path, "rename", 0), (Path, "rename", 1)],
)
def test_an_interrupted_write_leaves_the_old_release(tmp_path, break_at, owner, name, n, error):
    old = write(tmp_path / "release")
    break_at(owner, name, n, error)

    with pytest.raises(type(error)):
        write(tmp_path / "release", data_digest="another")

    assert load_release(tmp_path / "release") == old
    assert [path.name for path in tmp_path.iterdir()] == ["release"]


@pytest.mark.usefixtures("no_swap")
def test_two_writers_share_no_partial_folder(tmp_path, monkeypatch):
    inner: list[Any] = []
    real = Path.rename

    def rename(self, target):
        if not inner:  # as the first writer is about to put its release in place
            inner.append(None)
            inner[0] = write(tmp_path / "release", data_digest="another")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="not empty"):
        write(tmp_path / "release")

    assert load_release(tmp_path / "release") == inner[0]
    assert [path.name for path in tmp_path.iterdir()] == ["release"]


def test_interval_levels_are_found_by_coverage(tmp_path):
    release = write(tmp_path / "release")

    assert release.interval_levels(0.8) == (1, 3)
    assert release.interval_levels(0.9) == (0, 4)
    with pytest.raises(InvalidJobError, match=r"request one of 0\.8, 0\.9"):
        release.interval_levels(0.5)


def test_co_locations_with_a_held_out_member_are_not_in_training():
    names = [f"job-{i}" for i in range(40)]
    folds = job_folds(names)
    training = [name for name, fold in zip(names, folds, strict=True) if fold != HELD_OUT_FOLD]
    held_out = next(name for name, fold in zip(names, folds, strict=True) if fold == HELD_OUT_FOLD)
    members = {"two": training[:2], "three": [*training[:2], held_out]}
    rows = [(name, job, len(jobs)) for name, jobs in members.items() for job in jobs]
    table = pd.DataFrame(rows, columns=["colocation", "job_id", "members"])

    assert set(training_colocations(table)["colocation"]) == {"two"}
    assert training_colocations(table.iloc[2:]).empty


# Bad input: nothing of a damaged release may be served.


def test_a_wrong_hash(tmp_path):
    write(tmp_path / "release")
    (tmp_path / "release" / "memory.onnx").write_bytes(b"tampered with")
    refused(tmp_path / "release", "memory.onnx: sha256 is .* the manifest says")


def test_a_missing_model(tmp_path):
    write(tmp_path / "release")
    (tmp_path / "release" / "interference.onnx").unlink()
    refused(tmp_path / "release", "interference.onnx: cannot be read")


def test_a_missing_manifest(tmp_path):
    refused(tmp_path, "release.json: cannot be read")


@pytest.mark.parametrize("text", ["", "{", "[]", '"release"', "{}", '{"release_id": "x"}'])
def test_a_file_that_is_not_a_manifest(tmp_path, text):
    write(tmp_path / "release")
    (tmp_path / "release" / MANIFEST).write_text(text)
    refused(tmp_path / "release", "not JSON|not a release manifest")


def test_an_edited_manifest(tmp_path):
    write(tmp_path / "release")
    path = tmp_path / "release" / MANIFEST
    content = json.loads(path.read_text()) | {"trained_devices": ["h200"]}
    path.write_text(json.dumps(content))
    refused(tmp_path / "release", "does not match its release_id")


@pytest.mark.parametrize(
    ("field", "match"), [("schema_hash", "feature schema"), ("format", "release format")]
)
def test_a_release_of_another_version(tmp_path, field, match):
    write(tmp_path / "release")
    path = tmp_path / "release" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: "another"}))
    refused(tmp_path / "release", match)
