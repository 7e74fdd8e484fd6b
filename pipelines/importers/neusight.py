"""NeuSight: forward latency of single operators in fp32, by shape, on GPUs of seven types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from presage.errors import TableError
from presage.features.graph.op_kinds import ELEMENT_FLOPS, aten_kind
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv, read_parquet

ORIGIN = Origin(
    "neusight", "https://github.com/sitar-lab/NeuSight, scripts/asplos/data/dataset/", "MIT"
)
CAMPAIGN = "neusight"
FP32_BYTES = 4
REQUIRED = {"OPName": str, "Latency": float, "Device": str}
EXPECTED = "op_latency_train.parquet, or upstream's dataset/train/**/*.csv"
KEY = ["op", "shape", "device_kind"]
Sizes = tuple[pd.Series, pd.Series, pd.Series, pd.Series]


@dataclass(frozen=True, slots=True)
class Operator:
    """Definition of one of NeuSight's operators.

    Attributes
    ----------
    aten : str
        Torch's name of the operator.
    dims : Mapping of str to str
        Columns of its shape, and our name of each.
    sizes : callable
        Returns elements of its inputs, parameters and output, and its FLOPs.
    """

    aten: str
    dims: Mapping[str, str]
    sizes: Callable[[pd.DataFrame], Sizes]


def _bmm(d: pd.DataFrame) -> Sizes:
    """Compute the sizes of (B, M, N) x (B, N, K)."""
    inputs = d["B"] * d["N"] * (d["M"] + d["K"])
    return inputs, 0 * d["B"], d["B"] * d["M"] * d["K"], 2 * d["B"] * d["M"] * d["N"] * d["K"]


def _linear(d: pd.DataFrame) -> Sizes:
    """Compute the sizes of (B, M, N) by K outputs with a bias, whose additions count."""
    outputs = d["B"] * d["M"] * d["K"]
    return d["B"] * d["M"] * d["N"], (d["N"] + 1) * d["K"], outputs, (2 * d["N"] + 1) * outputs


def _convolution(d: pd.DataFrame) -> Sizes:
    """Compute the sizes for square images and kernels, without bias."""
    kernel, pad = d["Kernel_Szie"], d["Padding"]  # as upstream spells it
    side = (d["Input_Size"] + 2 * pad - kernel) // d["Stride"] + 1
    weights = d["Input_Channel"] * d["Output_Channel"] * kernel**2
    inputs = d["B"] * d["Input_Channel"] * d["Input_Size"] ** 2
    pixels = d["B"] * side**2
    return inputs, weights, pixels * d["Output_Channel"], 2 * pixels * weights


def _elementwise(aten: str, *, inputs: int = 1, parameters: int = 0) -> Operator:
    """Return an element-wise operator on (B, H) inputs, with parameters for each column."""
    flops = ELEMENT_FLOPS.get(aten_kind(aten), 1)

    def sizes(d: pd.DataFrame) -> Sizes:
        elements = d["B"] * d["H"]
        return inputs * elements, parameters * d["H"], elements, flops * elements

    return Operator(aten, {"B": "B", "H": "H"}, sizes)


_MATRICES = {"B": "B", "M": "M", "N": "N", "K": "K"}
_IMAGES = {
    "B": "B", "Input_Channel": "IN", "Output_Channel": "OUT", "Kernel_Szie": "KERNEL",
    "Input_Size": "SIDE", "Stride": "STRIDE", "Padding": "PADDING",
}  # fmt: skip
# From upstream's collect.py; a name that ends in u has a number as its second operand.
OPERATORS = {
    "bmm": Operator("bmm", _MATRICES, _bmm),
    "linear": Operator("addmm", _MATRICES, _linear),
    "conv": Operator("convolution", _IMAGES, _convolution),
    "softmax": _elementwise("_softmax"),
    "ln": _elementwise("native_layer_norm", parameters=2),
    **{name: _elementwise(name, inputs=2) for name in ("add", "mul", "div", "pow")},
    **{f"{name}u": _elementwise(name) for name in ("add", "mul", "div", "pow")},
    **{name: _elementwise(name) for name in ("relu", "gelu", "tanh")},
}


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read the tidied table, or upstream's files with an operator each.

    Upstream repeats rows in several files. Equal latencies of a shape are one measurement, and the
    median of different latencies is used.
    """
    measured = []
    for file in find_files(path, ("op_latency*.parquet", "*.csv"), EXPECTED):
        load = read_parquet if file.suffix == ".parquet" else read_csv
        rows = load(file, REQUIRED)
        if (rows["Latency"] <= 0).any():
            raise TableError(f"{file}: a latency of 0 ms or less cannot be; {DOCS}")
        for op, of_op in rows.groupby("OPName"):
            if op not in OPERATORS:
                imported.skip(f"operator {op!r} is none of {', '.join(OPERATORS)}", len(of_op))
            else:
                known = _on_known_devices(of_op, imported)
                measured.append(_operators(str(op), known, file))
    every = pd.concat(measured) if measured else pd.DataFrame()
    if every.empty:
        return
    distinct = every.drop_duplicates([*KEY, "latency_s"])
    if again := len(every) - len(distinct):
        imported.skip("the same latency of the same shape, once more", again)
    others = {name: "first" for name in distinct if name not in KEY}
    grouped = distinct.groupby(KEY, sort=True).agg(others | {"latency_s": "median", "runs": "size"})
    imported.operators(grouped.reset_index(), campaign=CAMPAIGN)


def _on_known_devices(rows: pd.DataFrame, imported: Imported) -> pd.DataFrame:
    kinds: dict[str, str | None] = {}
    for name, count in rows["Device"].value_counts().items():
        if str(name).startswith("AMD"):
            imported.skip(f"{name}: AMD's devices have no CUDA compute capability", count)
            kinds[str(name)] = None
        else:
            kinds[str(name)] = imported.kind_of(str(name), count)
    return rows.assign(device_kind=rows["Device"].map(kinds)).dropna(subset="device_kind")


def _operators(op: str, rows: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Return the columns of `operators`, with a row for each of ``rows``."""
    known = OPERATORS[op]
    dims = _dims(known, rows, file)
    inputs, parameters, outputs, flops = known.sizes(dims)
    shape = pd.Series("", index=rows.index)
    for theirs, ours in known.dims.items():
        shape += f" {ours}=" + dims[theirs].astype(str)
    return pd.DataFrame(
        {
            "op": op,
            "kind": aten_kind(known.aten),
            "shape": shape.str.strip(),
            "precision": "fp32",
            "device_kind": rows["device_kind"],
            "versions": _versions(rows),
            "input_elements": inputs,
            "output_elements": outputs,
            "parameters": parameters,
            "flops": flops,
            "bytes_moved": FP32_BYTES * (inputs + parameters + outputs),
            "latency_s": rows["Latency"] / 1e3,
            "runs": 1,
        }
    )


def _dims(known: Operator, rows: pd.DataFrame, file: Path) -> pd.DataFrame:
    missing = [name for name in known.dims if name not in rows]
    if missing:
        raise TableError(f"{file}: no column {missing[0]!r}, {known.aten} needs it; {DOCS}")
    dims = rows[list(known.dims)].apply(pd.to_numeric, errors="coerce")
    if not (dims >= 0).all(axis=None) or not (dims % 1 == 0).all(axis=None):
        raise TableError(
            f"{file}: {known.aten}: a size is empty, negative or no whole number; {DOCS}"
        )
    whole: pd.DataFrame = dims.astype("int64")
    return whole


def _versions(rows: pd.DataFrame) -> pd.Series:
    """Return versions from upstream's "p2.1.0" and "cu121", which may be empty."""
    words = pd.Series("", index=rows.index)
    if "Torch Version" in rows:
        torch = rows["Torch Version"].astype("string").str.removeprefix("p")
        words += ("torch=" + torch).fillna("")
    if "CUDA Version" in rows:
        digits = rows["CUDA Version"].astype("string").str.removeprefix("cu")
        words += (" cuda=" + digits.str[:-1] + "." + digits.str[-1]).fillna("")
    return words.str.strip()
