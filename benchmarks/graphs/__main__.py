"""Operator graphs against published counts, torch's own and ONNX; writes docs/benchmarks/graphs.md.

Run ``python -m benchmarks.graphs [--timm-results FILE]``; a quarter of an hour on one core, nearly
all of it for timm's thousand models. FILE keeps their counts between runs (JSON lines; delete it
when the tracer changes). timm's table is read from $PRESAGE_DATASETS (default
../shared/datasets); how to have timm without torchvision stands in benchmarks/graphs/timm_macs.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.graphs import checks, timm_macs
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/graphs.md")
DATASETS = Path(os.environ.get("PRESAGE_DATASETS", "../shared/datasets"))
WITHIN, ROUNDING = 0.02, 0.005  # timm's table has two digits after the point


def timm_section(results: Path) -> list[str]:
    """Return Markdown of the comparison with timm's table, or why there is none."""
    title = ["## Multiply-adds of timm's models", ""]
    if not (DATASETS / "timm").is_dir():
        return [*title, f"Skipped: {DATASETS}/timm is not there.", ""]
    if importlib.util.find_spec("timm") is None:
        return [*title, "Skipped: timm is not installed.", ""]
    rows = timm_macs.measure(timm_macs.table(DATASETS), results)
    return [*title, *_timm_page(rows)]


def _timm_page(rows: pd.DataFrame) -> list[str]:
    plain, fvcore = (_within(rows, column) for column in ("gmacs_ours", "gmacs_ours_fvcore"))
    counted = rows["gmacs_ours"].notna()
    seconds = rows["s"]
    lines = [
        f"{len(rows)} models and image sizes of the table of timm 1.0.31, inference of one image. "
        "The table was counted with fvcore, which adds to the multiply-adds of convolutions and "
        "matrix products two per element of a batch norm and five per element of a layer or group "
        "norm.",
        "",
        "| our count | within 2 % | within 2 % or half of the table's last digit |",
        "|---|---:|---:|",
        *(
            f"| {name} | {100 * strict.mean():.1f} % | {100 * rounded.mean():.1f} % |"
            for name, (strict, rounded) in {
                "FLOPs of matrix products, convolutions, attention, recurrent layers / 2": plain,
                "the same with fvcore's norms": fvcore,
            }.items()
        ),
        "",
        f"{counted.sum()} models could be traced, in {seconds.median():.2f} s per model (median), "
        f"construction included.{'' if counted.all() else ' Errors of the others:'}",
        "",
        *(f"- {r.model} at {r.img_size}: {r.error}" for r in rows[~counted].itertuples()),
    ]
    far = rows[counted & ~fvcore[1]]
    unseen = [timm_macs.unseen_gmacs(r.model, int(r.img_size)) for r in far.itertuples()]
    far = far.assign(
        ratio=far["gmacs_ours_fvcore"] / far["gmacs"],
        seen_ratio=(far["gmacs_ours_fvcore"] - unseen) / far["gmacs"],
    )
    far = far.sort_values("ratio", key=lambda ratio: (ratio - 1).abs(), ascending=False)
    explained = (far["seen_ratio"] - 1).abs() <= WITHIN
    lines += [
        "",
        f"The table has the {len(far)} models with the largest differences. fvcore has no "
        "rule for fused attention or recurrent layers, and does not count them. Without "
        f"these operators, {explained.sum()} of these models agree within 2 % (last column), "
        f"which makes {100 * (fvcore[0].sum() + explained.sum()) / len(rows):.1f} % of all models, "
        "without an allowance for rounding. The target is 95 %. fvcore also does not "
        "count convolutions with `padding='same'`, as in ConvMixer. In both cases the count of the "
        "operator graph is correct. Differential attention (vit_dwee and similar models) was "
        "counted as separate operators; the fused operator multiplies by the values once more.",
        "",
        *_far_table(far),
        "",
    ]
    return lines


def _within(rows: pd.DataFrame, column: str) -> tuple[Any, Any]:
    off = (rows[column] - rows["gmacs"]).abs()
    return off <= WITHIN * rows["gmacs"], off <= WITHIN * rows["gmacs"] + ROUNDING


def _far_table(far: pd.DataFrame) -> list[str]:
    head = [
        "| model | image | table | ours | ours / table | without attention, recurrence |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    return head + [
        f"| {r.model} | {r.img_size} | {r.gmacs:.2f} | {r.gmacs_ours_fvcore:.2f} | {r.ratio:.3f} "
        f"| {r.seen_ratio:.3f} |"
        for r in far.itertuples()
    ]


def counter_section() -> list[str]:
    """Return Markdown of training steps' FLOPs against torch.utils.flop_counter."""
    found = [checks.against_torchs_counter(config) for config in checks.smallest_of_each_family()]
    lines = [
        "## FLOPs of a step against torch.utils.flop_counter",
        "",
        "One job of every family of the zoo: convolutions, matrix products and attention of "
        "forward and backward pass. torch's formula ignores the groups in a convolution's weight "
        "gradient; the column with groups corrects this. Fused recurrent layers are in neither "
        "count and have a column of their own.",
        "",
        "| job | ours, MFLOP | torch / ours | torch with groups / ours | recurrent, MFLOP |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in found:
        ours = max(1, row["ours"])
        lines.append(
            f"| {row['job']} | {row['ours'] / 1e6:,.1f} | {row['torch'] / ours:.4f} "
            f"| {row['torch_with_groups'] / ours:.4f} | {row['recurrent'] / 1e6:,.1f} |"
        )
    return [*lines, ""]


def onnx_section() -> list[str]:
    """Return Markdown of a module's graph from its exported file against its trace."""
    found = [checks.against_onnx(config) for config in checks.smallest_of_each_family()]
    names = list(next(row for row in found if "error" not in row))[2:]
    lines = [
        "## An exported ONNX file against a trace of the same module",
        "",
        "The first module of a job of every family, exported by `torch.onnx.export` in training "
        "mode, with adam. The figures are sums over the file's graph divided by sums over the "
        "trace's.",
        "",
        f"| job | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for row in found:
        cells = [f"{row[name]:.3f}" for name in names] if "error" not in row else []
        lines.append(
            f"| {row['job']} | {' | '.join(cells) or row['error'] + ' |' * (len(names) - 1)} |"
        )
    return [*lines, "", *CANNOT_AGREE, ""]


CANNOT_AGREE = [
    "Expected differences:",
    "",
    "- With its default, `optimize=True`, the exporter folds batch norms into convolutions, so "
    "their operators, parameters and activations are missing. The files above are not optimized "
    "unless marked: unoptimized, the marked ones have shapes computed from values or sequences "
    "of tensors, which the reader does not support.",
    "- Decomposed activations (hardswish, SiLU) keep other tensors than the fused operator.",
    "- A file does not mark trained weights: frozen weights (LoRA) and float constants (a graph "
    "network's adjacency) count as parameters, with gradient and optimizer state.",
    "- A trace sums its outputs for a loss, and Adam counts its steps. These single operators "
    "matter only in steps with few operators.",
    "- A transposition is a view in torch and an operator in a file; torch copies where it must.",
    "- Tensors that autograd keeps are predicted by a rule for each operator.",
    "- The exporter may reject modules that can be traced.",
]


def seven_billion_section() -> list[str]:
    """Return Markdown of tracing seven billion parameters in a separate process."""
    found = checks.seven_billion()
    return [
        "## A decoder of seven billion parameters",
        "",
        f"{found['parameters'] / 1e9:.2f} billion parameters (32 layers of width 4096, 2048 "
        "tokens, adamw), in a separate process: "
        f"built in {found['build_s']:.1f} s, traced in {found['trace_s']:.1f} s, at most "
        f"{found['peak_resident_bytes'] / 1e9:.2f} GB resident. The step does "
        f"{found['matrix_flops'] / 1e12:.1f} TFLOP in matrix products, with a peak of "
        f"{found['peak_live_bytes'] / 1e9:.1f} GB of memory.",
        "",
    ]


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.graphs", description="Operator graphs against other counts"
    )
    parser.add_argument("--timm-results", type=Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # the exporter's
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = args.timm_results or Path(folder) / "timm.jsonl"
        # Before timm: the exporter would take the stand-in for torchvision itself.
        checks = [*counter_section(), *onnx_section()]
        sections = [*seven_billion_section(), *timm_section(results), *checks]
    page = [
        "# Operator graphs",
        "",
        "This benchmark compares operator graphs with timm's published counts, with torch's "
        "own counter and with exported ONNX files. Written by `python -m benchmarks.graphs` "
        f"with torch {torch.__version__}.",
        "",
        *sections,
    ]
    write_page(PAGE, page)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
