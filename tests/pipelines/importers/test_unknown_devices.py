"""A device without a data sheet loses its own rows only, and is named in a warning."""

import json
import logging

import pandas as pd
import pytest

from presage.features.tables import schemas as tables
from presage.pipelines.benchmark.files import read_tables
from presage.pipelines.importers.imported import ADD_DEVICE
from presage.pipelines.importers.public_models.graph_cache import NoGraphs
from tests.pipelines.public_files import GAVEL, rows_of

UNKNOWN = "Foo 9000 XT"
SKIPPED = f"device {UNKNOWN!r} is not in features/device/catalogue.yaml; {ADD_DEVICE}"


def timm(folder):
    """Write a tidied table of a GPU, a processor and an unknown device."""
    path = folder / "timm_step_time.parquet"
    row = {
        "file": "f", "mode": "inference", "precision": "amp", "layout": "nchw", "torch": "2.4",
        "cuda": "cu124", "model": "resnet50", "img_size": 224, "batch_size": 8,
        "step_time_ms": 9.0, "param_count_m": 25.56,
    }  # fmt: skip
    rows = pd.DataFrame([row] * 3).assign(device=["RTX 3090 Ti", "i9-10940X", UNKNOWN])
    rows.loc[1, "cuda"] = None
    rows.to_parquet(path)
    return path


def torchvision(folder):
    path = folder / "torchvision_step_time.csv"
    row = {
        "file": "results/a.csv", "n_gpus": 1, "precision": "half", "mode": "train",
        "model": "resnet18", "batch_per_gpu": 12, "img": 224, "n_meas": 5, "median_ms": 9.0,
    }  # fmt: skip
    pd.DataFrame([row | {"gpu": gpu} for gpu in ("TITAN V", UNKNOWN)]).to_csv(path)
    return path


def neusight(folder):
    path = folder / "op_latency.csv"
    row = {"OPName": "add", "Latency": 1.0, "B": 4, "H": 4}
    pd.DataFrame([row | {"Device": name} for name in ("NVIDIA L40", UNKNOWN)]).to_csv(path)
    return path


def gavel(folder):
    path = folder / "simulation_throughputs.json"
    path.write_text(json.dumps({"p100": GAVEL["v100"], UNKNOWN: GAVEL["v100"]}))
    return path


@pytest.mark.parametrize(
    ("make", "table", "kinds"),
    [
        (timm, "executions", {"rtx-3090-ti", "cpu-i9-10940x"}),
        (torchvision, "executions", {"titan-v"}),
        (neusight, "operators", {"l40"}),
        (gavel, "executions", {"p100"}),
    ],
)
def test_the_rows_of_other_devices_are_imported(make, table, kinds, tmp_path):
    found = rows_of(make.__name__, make(tmp_path))
    found.write(tmp_path)

    rows = tables.read(tables.TABLES[table], tmp_path / f"{table}.parquet").to_pandas()
    assert set(rows["device_kind"]) == kinds
    assert found.skipped[SKIPPED] > 0


def test_a_processor_computes_in_bf16_where_a_gpu_does_in_fp16(tmp_path):
    rows_of("timm", timm(tmp_path), NoGraphs()).write(tmp_path)

    runs = tables.read(tables.EXECUTIONS, tmp_path / "executions.parquet").to_pandas()
    jobs = dict(zip(runs["device_kind"], runs["job_id"], strict=True))
    assert jobs["cpu-i9-10940x"].endswith("/bf16")
    assert jobs["rtx-3090-ti"].endswith("/fp16")


def test_a_benchmark_names_the_omitted_rows_and_reads_the_others(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        (campaign,) = read_tables([torchvision(tmp_path)], NoGraphs())

    assert [kind for kind, _, _ in campaign.devices] == ["titan-v"]
    assert f"torchvision: 1 x {SKIPPED}" in caplog.messages
