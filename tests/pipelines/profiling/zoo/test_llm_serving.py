"""Jobs that serve LLMs, at any context length: variants, cache, operators, and bad sizes."""

from __future__ import annotations

import re

import pytest
import torch

from presage.features.device.device import catalogue
from presage.features.graph.op_stats import summarize
from presage.pipelines.profiling.graph_tracing import trace
from presage.pipelines.profiling.running.worker import failure_kind
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, all_configs, build, parse
from presage.pipelines.profiling.zoo.language.llama_model import SERVED, SIZES, Llama
from presage.pipelines.profiling.zoo.language.llm_prefill import CachedLlama
from presage.pipelines.profiling.zoo.language.llm_serving import llm_serving, llm_serving_of

DECODE, PREFILL = "llm_decode", "llm_prefill"
NAMES = [
    "llm_decode/w256-d4-k8-c128/b4/inference",
    "llm_decode/w384-d6-k2-c512/b2/inference/bf16",
    "llm_decode/1b-c2048/b16/inference/bf16",
    "llm_prefill/w512-d4-k1-t64/b3/inference",
    "llm_prefill/8b-t333/b1/inference/fp16",
]


def served(name: str) -> CachedLlama:
    with torch.device("meta"):
        step = build(parse(name))
        step.run()
    (model,) = step.modules
    assert isinstance(model, CachedLlama)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_the_size_of_the_cache_is_exact(name):
    serving = llm_serving(parse(name))
    tensors = [
        t for cache in served(name).caches for t in (cache.keys, cache.values) if t is not None
    ]

    assert serving is not None
    assert len(tensors) == 2 * serving.cache.layers
    assert serving.cache.size_bytes == sum(int(tensor.nbytes) for tensor in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_the_cache_among_its_live_bytes(name):
    serving, graph = llm_serving(parse(name)), trace(parse(name))

    assert serving is not None
    assert graph.unknown_ops == {}
    assert graph.peak_live_bytes > graph.memory.parameter_bytes + serving.cache.size_bytes


def test_attention_of_a_decode_step_reads_the_whole_cache():
    moved = {}
    for context in (1024, 2048):
        rows = summarize(trace(parse(f"llm_decode/1b-c{context}/b8/inference/bf16")).nodes)
        moved[context] = sum(row.bytes_moved for row in rows if row.kind == "Attention")
    serving = llm_serving_of("llm_decode/1b-c1024/b8/inference/bf16")

    assert serving is not None
    assert moved[2048] - moved[1024] == serving.cache.size_bytes


def test_flops_of_prefill_grow_with_the_square_of_the_prompt_in_attention_only():
    flops = []
    for tokens in (256, 512, 1024):
        nodes = trace(parse(f"llm_prefill/1b-t{tokens}/b1/inference")).nodes
        by_kind = [
            sum(n.flops * n.count for n in nodes if (n.kind == "Attention") == is_attention)
            for is_attention in (True, False)
        ]
        flops.append(by_kind)

    assert flops[2][0] / flops[1][0] == pytest.approx(4, rel=0.05)
    assert flops[2][1] / flops[1][1] == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("llm_decode/8b-c4096/b8/inference", 8), ("llm_prefill/8b-t512/b8/inference", 4096)],
)
def test_a_step_processes_prompts_or_one_token_of_each_sequence(name, tokens):
    serving = llm_serving_of(name)

    assert serving is not None
    assert serving.tokens_per_step == tokens


@pytest.mark.parametrize(
    "job_id", ["mlp/w128-d2/b8/sgd", "llm_decode", "llm_decode/9b-c8/b1/inference", ""]
)
def test_other_jobs_have_no_cache(job_id):
    assert llm_serving_of(job_id) is None


# --- choice of context lengths ------------------------------------------------------------------


def test_contexts_are_opt_in():
    without = {config.name for config in all_configs()}

    assert not any(re.search(r"-k\d-[ct]", name) for name in without)


@pytest.mark.parametrize("large", [False, True])
def test_a_campaign_with_contexts_has_every_served_model_in_each(large):
    configs = all_configs(large=large, contexts=(64, 256))
    serving = [c for c in configs if c.family in (DECODE, PREFILL)]

    assert {c.variant for c in serving if c.family == DECODE} == {
        f"{model}-c{context}" for model in (SIZES if large else SERVED) for context in (64, 256)
    }
    assert [c for c in configs if c not in serving] == [
        c for c in all_configs(large=large) if c.family not in (DECODE, PREFILL)
    ]
    assert all(parse(c.name) == c for c in serving)


def test_a_published_context_has_the_same_sizes_by_either_name():
    family = FAMILIES[DECODE]

    assert family.large["1b-c1024"] == family.sizes("1b-c1024")
    assert family.sizes("1b-c777") == SIZES["1b"] | {"context": 777}


# --- sizes that cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llm_decode/1b-c0/b1/inference", "decoder: tokens=0, must be >= 1"),
        ("llm_prefill/1b-t0/b1/inference", "decoder: tokens=0, must be >= 1"),
        ("llm_decode/1b-c64/b0/inference", "batch_size=0, must be >= 1"),
        ("llm_decode/1b-t64/b1/inference", "no variant '1b-t64'; known are"),
        ("llm_decode/2b-c64/b1/inference", "no variant '2b-c64'"),
        ("llm_decode/1b/b1/inference", "no variant '1b'"),
        ("mlp/1b-c64/b1/sgd", "no variant '1b-c64'"),
    ],
)
def test_an_impossible_job_has_an_error_with_the_reason(name, words):
    with torch.device("meta"), pytest.raises(ValueError, match=words):
        build(parse(name))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 6, "kv_heads": 4}, "kv_heads=4 does not divide heads=6"),
        ({"kv_heads": 8}, "kv_heads=8 does not divide heads=4"),
        ({"kv_heads": 0}, "kv_heads=0, must be >= 1"),
        ({"width": 30}, "width=30 is not a multiple of 2 x heads=4"),
        ({"depth": 0}, "depth=0, must be >= 1"),
    ],
)
def test_a_decoder_that_cannot_be_built_has_an_error_with_the_reason(changes, words):
    sizes = {"width": 32, "depth": 1, "heads": 4, "kv_heads": 2} | changes

    with pytest.raises(ValueError, match=words):
        Llama(vocabulary=10, mlp=8, tied=1, tokens=4, **sizes)


def test_a_cache_larger_than_memory_is_traced_and_runs_out_of_memory():
    config = JobConfig(DECODE, "8b-c131072", 4096, "inference", "bf16")
    device, serving = catalogue()["h200"], llm_serving(config)

    assert serving is not None
    assert trace(config).peak_live_bytes > serving.cache.size_bytes > 100 * device.memory_bytes
    weights = 16 << 30
    assert serving.cache.max_batch_size(device.memory_bytes - weights) < config.batch_size
    with pytest.raises(RuntimeError) as error:  # as the worker meets it, without 64 TiB of weights
        torch.zeros(serving.cache.size_bytes // 4)
    assert failure_kind(error.value) == "out-of-memory"
