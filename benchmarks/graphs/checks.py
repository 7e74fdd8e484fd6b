"""Checks of operator graphs on the job zoo, for benchmarks/graphs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from presage.errors import GraphError
from presage.features.from_onnx.graph import read_onnx
from presage.features.from_torch.fused import fused_kernels
from presage.features.from_torch.graph import trace_module, trace_step
from presage.features.graph.op_graph import OpGraph
from presage.features.graph.roofline import MATRIX_KINDS
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, all_configs, build

SEVEN_BILLION = {
    "vocabulary": 32_000, "width": 4096, "depth": 32, "heads": 32, "kv_heads": 32,
    "mlp": 11_008, "tied": 0, "tokens": 2048,
}  # fmt: skip


def smallest_of_each_family() -> Iterator[JobConfig]:
    """Return the first configuration of every family of the zoo."""
    for family in sorted(FAMILIES):
        yield next(config for config in all_configs() if config.family == family)


def against_torchs_counter(config: JobConfig) -> dict[str, Any]:
    """Return FLOPs of a step's products: ours, torch's, and torch's with groups."""
    with torch.device("meta"):
        step = build(config)
        graph = trace_step(step.run, step.modules, step.input_elements)
        as_it_is, corrected = FlopCounterMode(display=False), _counter_that_knows_groups()
        for counter in (as_it_is, corrected):
            with fused_kernels(), counter:
                step.run()
    return {
        "job": config.name,
        "ours": matrix_flops(graph, MATRIX_KINDS - {"Recurrent"}),
        "torch": as_it_is.get_total_flops(),
        "torch_with_groups": corrected.get_total_flops(),
        "recurrent": matrix_flops(graph, frozenset({"Recurrent"})),
    }


def matrix_flops(graph: OpGraph, kinds: frozenset[str] = MATRIX_KINDS) -> int:
    """Return the FLOPs of a graph's operators of these kinds."""
    return sum(n.flops * n.count for n in graph.nodes if n.kind in kinds)


def _counter_that_knows_groups() -> FlopCounterMode:
    def gradients(
        grad: torch.Size, image: torch.Size, weight: torch.Size, *settings: Any, out_shape: Any
    ) -> int:
        transposed, output_mask = settings[4], settings[-1]
        places = image if transposed else grad
        return sum(output_mask[:2]) * 2 * math.prod(places) * math.prod(weight[1:])

    mapping = {torch.ops.aten.convolution_backward: gradients}
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _exported(module: Any, inputs: Any, path: Path, *, batch: int, optimize: bool) -> OpGraph:
    torch.onnx.export(
        module, inputs, path, dynamo=True, verbose=False, external_data=False, optimize=optimize
    )
    return read_onnx(path, batch_size=batch, optimizer="adam")


def against_onnx(config: JobConfig) -> dict[str, Any]:
    """Return sums of a module's graph from its exported file over those of its trace."""
    module, inputs = _module_and_inputs(config)
    batch = inputs[0].shape[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        optimized = False
        try:
            try:
                read = _exported(module, inputs, path, batch=batch, optimize=False)
            except GraphError:  # shapes by values, or sequences, that the optimizer does away with
                optimized = True
                read = _exported(module, inputs, path, batch=batch, optimize=True)
        except (GraphError, RuntimeError, torch.onnx.OnnxExporterError) as error:
            return {"job": config.name, "error": _first_line(error, folder)}
    traced = trace_module(
        module.to("meta"), [tensor.to("meta") for tensor in inputs], optimizer="adam"
    )
    ratios = {name: of(read) / of(traced) for name, of in _SUMS.items()}
    name = f"{config.name} (optimized)" if optimized else config.name
    return {"job": name, "unknown": read.unknown_ops, **ratios}


_SUMS = {
    "matrix FLOPs": matrix_flops,
    "FLOPs": lambda graph: sum(n.flops * n.count for n in graph.nodes),
    "bytes": lambda graph: sum(n.bytes_moved * n.count for n in graph.nodes),
    "operators": lambda graph: sum(n.count for n in graph.nodes),
    "parameters": lambda graph: graph.parameters,
    "activations": lambda graph: graph.memory.activation_bytes,
    "peak memory": lambda graph: graph.peak_live_bytes,
}


def _module_and_inputs(config: JobConfig) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a family's first module on the processor, and its inputs."""
    torch.manual_seed(0)
    step = build(config)
    module = step.modules[0]
    called: list[tuple[torch.Tensor, ...]] = []
    hook = module.register_forward_pre_hook(lambda _module, args: called.append(args))
    step.run()
    hook.remove()
    for parameter in module.parameters():  # the exporter merges weights of equal values
        nn.init.normal_(parameter)
    return module, called[0]


def _first_line(error: BaseException, folder: str) -> str:
    """Return the first line of the innermost cause: the exporter wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.replace(f"{folder}/", "")[:160]


def seven_billion() -> dict[str, float]:
    """Return seconds and peak resident memory of tracing it in a process of its own."""
    done = subprocess.run([sys.executable, __file__], check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _trace_seven_billion() -> None:
    start_s = time.monotonic()
    with torch.device("meta"):
        step = FAMILIES["llama"].build(batch_size=1, optimizer="adamw", **SEVEN_BILLION)
        built_s = time.monotonic() - start_s
        graph = trace_step(step.run, step.modules, step.input_elements)
    answer = {
        "parameters": graph.parameters,
        "matrix_flops": matrix_flops(graph),
        "peak_live_bytes": graph.peak_live_bytes,
        "build_s": built_s,
        "trace_s": time.monotonic() - start_s - built_s,
        "peak_resident_bytes": _peak_resident_bytes(),
    }
    print(json.dumps(answer))


def _peak_resident_bytes() -> int:
    """Return this process's peak; getrusage's maximum includes the parent's through exec."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    _trace_seven_billion()
