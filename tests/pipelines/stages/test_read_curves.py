"""Loss curves in the provenance of a registration."""

import numpy as np
import pandas as pd

from presage.pipelines.stages.origin import read_curves


def write(folder, name, rows):
    folder.mkdir(exist_ok=True)
    columns = ["device_class", "split", "step", "training", "validation"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / f"{name}.csv", index=False)


def test_curves_are_by_predictor_class_split_and_kind_of_row(tmp_path):
    write(tmp_path, "memory", [("cpu", "job", 1, 2.0, 3.0), ("cpu", "job", 5, 1.0, 2.5)])
    write(tmp_path, "power", [("accelerator", "family", 1, 0.5, np.nan)])

    assert read_curves(tmp_path) == {
        "loss.memory.cpu.job.training": [(1, 2.0), (5, 1.0)],
        "loss.memory.cpu.job.validation": [(1, 3.0), (5, 2.5)],
        "loss.power.accelerator.family.training": [(1, 0.5)],
    }


def test_an_evaluation_without_curves_has_none(tmp_path):
    assert read_curves(tmp_path / "missing") == {}
    write(tmp_path, "memory", [])
    assert read_curves(tmp_path) == {}
