"""Exact figures of a job that serves an LLM: its key-value cache and the tokens of a step."""

from __future__ import annotations

from dataclasses import dataclass

from presage.features.from_torch.autocast import AUTOCAST_DTYPES
from presage.features.job.kv_cache import KvCache
from presage.pipelines.profiling.zoo.job_config import JobConfig, parse
from presage.pipelines.profiling.zoo.language import llm_decode, llm_prefill

_FAMILIES = {one.name: one for one in (llm_decode.FAMILY, llm_prefill.FAMILY)}
_FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class LlmServing:
    """Figures of one step of a serving job that need no prediction.

    Attributes
    ----------
    cache : KvCache
        Held throughout a decode step; filled by a prefill step.
    tokens_per_step : int
        Tokens that a step processes, of all sequences: prompts in prefill, one each in decode.
    """

    cache: KvCache
    tokens_per_step: int


def llm_serving(config: JobConfig) -> LlmServing | None:
    """Return the figures of a job of the families ``llm_prefill`` and ``llm_decode``, else None.

    Raises
    ------
    ValueError
        The variant is unknown, or its context length or the batch size is below 1.
    """
    family = _FAMILIES.get(config.family)
    if family is None:
        return None
    try:
        sizes = family.sizes(config.variant)
    except KeyError as error:
        raise ValueError(f"family {config.family!r}: no variant {config.variant!r}") from error
    half = AUTOCAST_DTYPES.get(config.precision)
    cache = KvCache(
        layers=sizes["depth"],
        kv_heads=sizes["kv_heads"],
        head_width=sizes["width"] // sizes["heads"],
        context=sizes[family.context],
        batch_size=config.batch_size,
        element_bytes=_FP32_BYTES if half is None else half.itemsize,
    )
    prompt = cache.context if family is llm_prefill.FAMILY else 1
    return LlmServing(cache, config.batch_size * prompt)


def llm_serving_of(job_id: str) -> LlmServing | None:
    """Return the figures of a job by its id; None for ids of other jobs, also invalid ones."""
    try:
        return llm_serving(parse(job_id))
    except ValueError:
        return None
