"""Key-value cache and tokens per second of jobs that serve LLMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from presage.features.device.device import Device
from presage.features.forecast import Forecast
from presage.features.job.job_description import JobFeatures
from presage.system.text.units import counted, quantity

if TYPE_CHECKING:
    from presage.pipelines.profiling.zoo.language.llm_serving import LlmServing

_PREFIX = "llm_"  # of the ids of such jobs


def serving_lines(job: JobFeatures, device: Device, step_time: Forecast | None = None) -> list[str]:
    """Return what to print of a job that serves an LLM; nothing for other jobs."""
    found = _serving_of(job)
    if found is None:
        return []
    cache = found.cache
    # An upper bound: activations and kernels need memory, too.
    free_bytes = device.memory_bytes - device.context_bytes - job.memory.parameter_bytes
    most = cache.max_batch_size(free_bytes)
    lines = [
        f"KV cache {quantity(cache.size_bytes, 'bytes')}: 2 x {cache.layers} layers x "
        f"{cache.kv_heads} heads x {cache.head_width} elements x {cache.context:,} tokens x "
        f"{cache.batch_size} sequences x {cache.element_bytes} bytes",
        f"at most {counted(most, 'sequence')} of {cache.context:,} tokens fit on {device.kind} "
        f"with the weights{'' if cache.batch_size <= most else '; this batch does not fit'}",
    ]
    if step_time is not None:
        median, low, high = _tokens_per_s(found, step_time)
        lines.append(f"{median:,.0f} tokens/s ({low:,.0f} to {high:,.0f})")
    return lines


def serving_figures(job: JobFeatures, step_time: Forecast) -> dict[str, Any]:
    """Return the entries of a JSON document for a job that serves an LLM; empty for others."""
    found = _serving_of(job)
    if found is None:
        return {}
    median, low, high = _tokens_per_s(found, step_time)
    return {
        "kv_cache_bytes": found.cache.size_bytes,
        "tokens_per_s": {"median": median, "low": low, "high": high},
    }


def _serving_of(job: JobFeatures) -> LlmServing | None:
    if not job.job.job_id.startswith(_PREFIX):
        return None
    try:  # imports torch, which clients with a job's JSON file may lack
        from presage.pipelines.profiling.zoo.language.llm_serving import llm_serving_of
    except ModuleNotFoundError:
        return None
    return llm_serving_of(job.job.job_id)


def _tokens_per_s(found: LlmServing, step_time: Forecast) -> tuple[float, float, float]:
    """Return the median, low and high; the low one is that of the longest step."""
    tokens = found.tokens_per_step
    return tokens / step_time.median, tokens / step_time.high, tokens / step_time.low
