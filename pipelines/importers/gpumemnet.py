"""GPUMemNet: memory of timm models and utilization of random MLPs, trained on an A100 of 40 GB."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from presage.errors import GraphError, TableError
from presage.features.from_torch.graph import trace_module
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.timm_job import TimmJob, add_timm_job
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv

ORIGIN = Origin("gpumemnet", "https://github.com/itu-rad/GPUMemNet", "none")
DEVICE = "a100-40gb"
MIB = 2**20
MEMORY = {"model": str, "batch_size": int, "max_gpu_mem_mib": float, "status": str,
          "faketensor_final_mib": float, "param_count_m": float}  # fmt: skip
MLPS = {"Filename": str, "Activations-Params": str, "Batch Size": int,
        "Max GPU Memory (MiB)": float, "Avg GPUTL": float, "Avg SMACT": float,
        "Avg SMOCC": float}  # fmt: skip
EXPECTED = "timm_train_memory_a100_40gb.csv, or upstream's Dataset/MLP/mlp_data_step1.csv"
# Upstream's mlp.py trains the MLPs. Upstream has not published the training of the timm models;
# their memory beyond activations is three times their parameters, as Adam's at the peak.
OPTIMIZER = "adam"
# A measurement below this fraction of parameters and live activations (FakeTensor) is invalid.
LEAST_OF_ESTIMATE = 0.6
# Above this multiple of the estimate the images differ: our timm builds the model for larger ones.
OTHER_IMAGES, IMAGENET_SIDE = 4, 224
# `after_oom` is a batch larger than one that ran out of memory, so it ran out, too.
OUT_OF_MEMORY = ("oom", "oom_or_full", "after_oom")


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read the tidied memory of timm models, and upstream's or the tidied table of MLPs."""
    patterns = ("*memory*a100*.csv*", "*mlp*utilization*.csv*", "mlp_data_step1.csv*")
    for file in _files(path, patterns):
        is_memory = "faketensor_final_mib" in read_csv(file, {})
        columns, add = (MEMORY, _add_timm_model) if is_memory else (MLPS, _add_mlp)
        for row in read_csv(file, columns).to_dict("records"):
            add(row, file, imported, graphs)


def _files(path: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Return a folder's files of all patterns, because they are two tables."""
    found = [f for p in patterns for f in sorted(path.rglob(p))] if path.is_dir() else []
    return found or find_files(path, patterns, EXPECTED)


def _add_timm_model(
    row: Mapping[Any, Any], file: Path, imported: Imported, graphs: GraphCache
) -> None:
    status, measured = row["status"], row["max_gpu_mem_mib"] * MIB
    if measured <= 0 or row["batch_size"] < 1:
        raise TableError(f"{file}: {row['model']}: {measured / MIB} MiB cannot be; {DOCS}")
    if status not in ("ok", *OUT_OF_MEMORY):
        imported.skip(f"status {status!r}: not what the job needs")
        return
    if status == "ok" and measured < LEAST_OF_ESTIMATE * MIB * row["faketensor_final_mib"]:
        imported.skip("less memory than 0.6 x (parameters + activations), which cannot be")
        return
    job = TimmJob(row["model"], 0, row["batch_size"], OPTIMIZER, "fp32")
    job_id = f"gpumemnet/{job.model}/b{job.batch_size}/{OPTIMIZER}/fp32"
    graph, estimate = job.graph(graphs), MIB * row["faketensor_final_mib"]
    if graph is not None and graph.peak_live_bytes > OTHER_IMAGES * estimate:
        job, graph = replace(job, side=IMAGENET_SIDE), None
    parameters = 1e6 * row["param_count_m"]
    add_timm_job(imported, graphs, job_id, job, parameters=parameters, graph=graph)
    failed = status in OUT_OF_MEMORY
    imported.execution(
        job_id, DEVICE, campaign="timm-memory",
        memory_peak_bytes=None if failed else int(measured),
        failure="out-of-memory" if failed else "",
    )  # fmt: skip


def _add_mlp(row: Mapping[Any, Any], file: Path, imported: Imported, graphs: GraphCache) -> None:
    shape = str(row["Filename"]).removesuffix(".out")
    batch_size, layers = row["Batch Size"], _layers(row["Activations-Params"], file)
    busy = {"compute_utilization": row["Avg GPUTL"] / 100, "sm_activity": row["Avg SMACT"],
            "sm_occupancy": row["Avg SMOCC"]}  # fmt: skip
    if batch_size < 1 or any(not 0 <= share <= 1 for share in busy.values()):
        raise TableError(f"{file}: {shape}: batch {batch_size}, {busy} cannot be; {DOCS}")
    if layers[0][0] != "linear" or layers[0][2] % layers[0][1]:
        imported.skip("an MLP whose first layer does not tell the size of its input")
        return
    inputs = layers[0][2] // layers[0][1] - 1  # without the bias
    graph = graphs.graph(
        f"mlp {OPTIMIZER} {inputs} {layers} b{batch_size}".replace(", ", ","),
        partial(trace_mlp, inputs, layers, batch_size),
    )
    if graph is None:
        imported.note(f"job without a graph: {graphs.missing_reason('an MLP that is not traced')}")
    name = re.sub(r"_batch:\d+$|arch:|:", "", shape).replace("_", "-")
    job_id = f"gpumemnet/mlp/{name}/b{batch_size}/{OPTIMIZER}/fp32"
    imported.job(
        job_id, graph=graph, name=f"mlp/{name}", family="mlp", precision="fp32",
        optimizer=OPTIMIZER, batch_size=batch_size,
        loads_data=True,  # a DataLoader collates every batch from memory
        **({} if graph else {"input_elements": inputs}),
    )  # fmt: skip
    imported.execution(
        job_id, DEVICE, campaign="mlp-utilization",
        memory_peak_bytes=int(row["Max GPU Memory (MiB)"] * MIB), **busy,
    )  # fmt: skip


def _layers(text: str, file: Path) -> list[tuple[str, int, int]]:
    """Return kind, outputs and parameters of each layer."""
    try:
        rows = ast.literal_eval(text)
        layers = [(str(kind), int(size), int(count)) for kind, size, count in rows]
    except (SyntaxError, TypeError, ValueError) as error:
        raise TableError(
            f"{file}: layers {text[:60]!r} cannot be read ({error}); {DOCS}"
        ) from error
    if not layers or any(size < 1 for _, size, _ in layers):
        raise TableError(f"{file}: layers {text[:60]!r}: none, or one without outputs; {DOCS}")
    return layers


def trace_mlp(inputs: int, layers: list[tuple[str, int, int]], batch_size: int) -> OpGraph:
    """Trace the operator graph of an MLP's training step.

    Raises
    ------
    GraphError
        A layer is neither linear nor an activation of torch.
    """
    modules: list[nn.Module] = []
    with torch.device("meta"):
        batch = torch.empty(batch_size, inputs)
        for kind, size, _ in layers:
            if kind == "linear":
                modules.append(nn.Linear(inputs, size))
                inputs = size
            elif kind in nn.modules.activation.__all__:
                modules.append(getattr(nn, kind)())
            else:
                raise GraphError(f"layer {kind!r} of an MLP is neither linear nor an activation")
    return trace_module(nn.Sequential(*modules), [batch], optimizer=OPTIMIZER)
