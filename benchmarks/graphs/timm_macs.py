"""Multiply-adds of public vision models against timm's table, for benchmarks/graphs.

timm 1.0.31 must be importable: ``pip install --no-deps --target FOLDER timm==1.0.31 safetensors
huggingface_hub`` and put FOLDER on PYTHONPATH.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pandas as pd

from presage.features.from_torch.graph import trace_module
from presage.features.graph.op_graph import OpGraph
from presage.features.graph.roofline import MATRIX_KINDS
from presage.pipelines.importers.public_models.timm_models import build

# The table was counted with fvcore, which adds to multiply-adds these many per element.
FVCORE_NORMS = {"batch_norm": 2, "layer_norm": 5, "group_norm": 5, "instance_norm": 1}


def table(datasets: Path) -> pd.DataFrame:
    """Return one row for each model and image size in timm 1.0.31."""
    rows = pd.read_parquet(datasets / "timm" / "timm_step_time.parquet")
    rows = rows[rows["buildable_timm_1_0_31"] & rows["gmacs"].notna()]
    columns = ["model", "img_size", "gmacs", "param_count_m"]
    return rows[columns].drop_duplicates(["model", "img_size"]).reset_index(drop=True)


def inference_graph(model: str, img_size: int) -> OpGraph:
    """Return the graph of one image, on the meta device."""
    module, images = build(model, img_size, 1)
    return trace_module(module.eval(), images, training=False)


def unseen_gmacs(model: str, img_size: int) -> float:
    """Return multiply-adds that fvcore does not count: fused attention, recurrent (10**9)."""
    graph = inference_graph(model, img_size)
    unseen = (n.flops * n.count for n in graph.nodes if n.kind in ("Attention", "Recurrent"))
    return sum(unseen) / 2e9


def counted(graph: OpGraph) -> dict[str, float]:
    """Return multiply-adds in units of 10**9, and what fvcore's convention adds to them."""
    matrix = sum(n.flops * n.count for n in graph.nodes if n.kind in MATRIX_KINDS) / 2
    norms = sum(
        per_element * n.output_elements * n.count
        for n in graph.nodes
        for name, per_element in FVCORE_NORMS.items()
        if name in n.op and n.kind == "Normalization"
    )
    return {
        "gmacs_ours": matrix / 1e9,
        "gmacs_ours_fvcore": (matrix + norms) / 1e9,
        "parameters_m": graph.parameters / 1e6,
    }


def measure(rows: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Return counts of every row; rows in ``results`` (JSON lines) are not computed again."""
    done = {}
    if results.exists():
        found = [json.loads(line) for line in results.read_text().splitlines()]
        done = {(row["model"], row["img_size"]): row for row in found}
    with results.open("a") as file:
        for row in rows.itertuples():
            if (row.model, int(str(row.img_size))) in done:
                continue
            made = {
                "model": row.model,
                "img_size": int(str(row.img_size)),
                **_counted_or_error(row),
            }
            done[made["model"], made["img_size"]] = made
            file.write(json.dumps(made) + "\n")
            file.flush()
    return rows.merge(pd.DataFrame(done.values()), on=["model", "img_size"], suffixes=("", "_"))


def _counted_or_error(row: Any) -> dict[str, Any]:
    start_s = time.monotonic()
    try:
        counts: dict[str, Any] = counted(inference_graph(row.model, int(row.img_size)))
    except Exception as error:  # one model of a thousand must not end the run
        counts = {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}
    return counts | {"s": time.monotonic() - start_s}
