import pytest
import torch
from torch.nn import functional as F

from presage.features.from_torch.graph import trace_step
from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, build
from presage.pipelines.profiling.zoo.gnn import GcnLayer
from presage.pipelines.profiling.zoo.language.llama_model import Attention, Llama, Rotation, attend
from presage.pipelines.profiling.zoo.language.llm_prefill import CachedLlama
from presage.pipelines.profiling.zoo.language.lora import add_adapters

TINY = {"vocabulary": 50, "width": 32, "depth": 2, "heads": 4, "kv_heads": 2, "mlp": 64, "tied": 1}

# In print, each family's file says where; the rest guards what importers map names to.
PARAMETERS = {
    "convnext": {"t-s224": 28_589_128, "b-s224": 88_591_464},
    "deepspeech2": {"h800-t200": 41_190_528, "h800-t800": 41_190_528},
    "diffusion": {"ddpm-s32": 35_746_307, "ddpm-s64": 78_700_803, "latent-s64": 607_054_084},
    "gnn": {"gcn-arxiv": 110_120, "sage-arxiv": 218_664, "gcn-cora-x32": 23_063},
    "gpt": {
        "gpt2-t256": 124_439_808 - 768 * 768,  # the positions beyond 256 are cut
        "gpt2-t1024": 124_439_808,
        "gpt2-medium-t1024": 354_823_168,
        "gpt2-xl-t512": 1_557_611_200 - 512 * 1600,
    },
    "llama": {"160m-t1024": 162_417_408, "1b-t512": 1_235_814_400, "1b-t2048": 1_235_814_400},
    "llm_decode": {
        "1b-c1024": 1_235_814_400,
        "1b-c4096": 1_235_814_400,
        "3b-c1024": 3_212_749_824,
        "8b-c1024": 8_030_261_248,
    },
    "llm_prefill": {
        "1b-t512": 1_235_814_400,
        "1b-t2048": 1_235_814_400,
        "3b-t1024": 3_212_749_824,
        "8b-t1024": 8_030_261_248,
    },
    "lora": {
        "1b-r16-t512": 1_235_814_400 + 1_703_936,
        "3b-r16-t512": 3_212_749_824 + 4_587_520,
        "8b-r16-t512": 8_030_261_248 + 6_815_744,
    },
    "lstm_lm": {
        "w200-d2-v33k": 13_987_678,
        "w650-d2-v33k": 50_065_078,
        "w1500-d2-v10k": 66_034_000,
    },
    "seq2seq_transformer": {
        "base-t32": 49_031_680,
        "base-t128": 49_080_832,
        "big-t128": 209_260_544,
    },
    "transformer_encoder": {
        "bert-base-t128": 109_483_778,
        "bert-base-t384": 109_483_778,
        "bert-large-t128": 335_143_938,
    },
    "vit": {"s16-s224": 22_050_664, "b16-s224": 86_567_656, "l16-s224": 304_326_632},
}


def large(family: str, variant: str) -> JobConfig:
    batch_size = FAMILIES[family].large_batch_sizes[0]
    return JobConfig(family, variant, batch_size, FAMILIES[family].optimizer)


def on_meta(config: JobConfig) -> TrainingStep:
    with torch.device("meta"):
        return build(config)


@pytest.mark.parametrize("family", PARAMETERS)
def test_large_variants_have_their_canonical_parameters(family):
    steps = {variant: on_meta(large(family, variant)) for variant in FAMILIES[family].large}

    counts = {v: sum(p.numel() for p in set(step.parameters())) for v, step in steps.items()}

    assert counts == PARAMETERS[family]


@pytest.mark.parametrize(
    ("sizes", "millions"),
    [({"width": 512}, (63, 65)), ({"width": 1024}, (213, 215))],
    ids=["base, 65 M in table 3", "big, 213 M"],
)
def test_the_translation_model_has_the_papers_size_at_its_vocabulary(sizes, millions):
    family = FAMILIES["seq2seq_transformer"]
    both = {"depth": 6, "tokens": 32, "head_width": 64, "vocabulary": 37_000, "tied": 1}
    with torch.device("meta"):
        step = family.build(batch_size=1, optimizer="adam", **both, **sizes)

    count = sum(p.numel() for p in step.parameters())

    assert millions[0] * 1e6 < count < millions[1] * 1e6


@pytest.mark.parametrize("family", PARAMETERS)
def test_a_large_variant_can_be_traced(family):
    # The one of the fewest operators: the deep ones run the same code.
    variant = min(FAMILIES[family].large, key=lambda v: PARAMETERS[family][v])

    with torch.device("meta"):
        step = build(large(family, variant))
        graph = trace_step(step.run, step.modules, step.input_elements)

    assert graph.unknown_ops == {}
    assert sum(node.flops * node.count for node in graph.nodes) > 0


@pytest.mark.parametrize("family", ["llm_prefill", "llm_decode"])
def test_an_inference_only_family_rejects_an_optimizer(family):
    variant = next(iter(FAMILIES[family].variants))

    with pytest.raises(ValueError, match=f"{family}' is inference only.*use 'inference' instead"):
        build(JobConfig(family, variant, 1, "adamw"))


def test_lora_trains_only_its_adapters():
    step = build(JobConfig("lora", "w128-d4-r4-t64", 2, "adamw"))
    (model,) = step.modules
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    step.run()
    step.run()  # in the first, one factor is still zero and holds the other's gradient at zero

    for name, parameter in model.named_parameters():
        adapter = name.endswith(("query.down.weight", "query.up.weight")) or name.endswith(
            ("value.down.weight", "value.up.weight")
        )
        assert parameter.requires_grad == adapter, name
        assert torch.equal(parameter, before[name]) != adapter, name


def test_lora_initially_equals_the_frozen_model():
    model, tokens = Llama(**TINY, tokens=8), torch.randint(50, (2, 8))
    expected = model(tokens)

    add_adapters(model, rank=2)

    assert torch.equal(model(tokens), expected)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_decoding_with_a_cache_equals_the_last_position_of_a_full_pass(kv_heads):
    model = Llama(**TINY | {"kv_heads": kv_heads}, tokens=9).eval()
    tokens = torch.randint(50, (3, 9))
    served = CachedLlama(model, 9, start=0)

    with torch.no_grad():
        whole = model(tokens)  # (3, 9, 50)
        after_prompt = served(tokens[:, :8])
        served.start = 8
        decoded = served(tokens[:, 8:])

    torch.testing.assert_close(after_prompt, whole[:, 7])
    torch.testing.assert_close(decoded, whole[:, 8])


def test_a_cache_is_allocated_once_in_the_type_of_the_keys():
    step = build(JobConfig("llm_decode", "w256-d4-c128", 2, "inference"))
    (served,) = step.modules
    assert isinstance(served, CachedLlama)

    step.run()
    made = [cache.keys for cache in served.caches]
    step.run()

    assert all(cache.keys is keys for cache, keys in zip(served.caches, made, strict=True))
    assert all(keys is not None and keys.shape == (2, 2, 128, 32) for keys in made)


def test_a_group_of_queries_shares_a_key():
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)

    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    torch.testing.assert_close(attend(query, key, value), expected)
    torch.testing.assert_close(attend(query[:, :, 4:], key, value), expected[:, :, 4:])


def test_rotated_products_depend_only_on_the_distance():
    rotation = Rotation(8, 16)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    near = rotation(query, 3) @ rotation(key, 1).mT
    far = rotation(query, 12) @ rotation(key, 10).mT

    torch.testing.assert_close(near, far)


def test_attention_is_causal():
    attention, rotation = Attention(32, 4, 2), Rotation(8, 6)
    x = torch.randn(1, 6, 32)
    changed = torch.cat([x[:, :5], torch.randn(1, 1, 32)], dim=1)

    before, after = (attention(each, rotation, None, 0) for each in (x, changed))

    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5], after[:, 5])


def test_a_graph_layer_multiplies_by_the_normalised_adjacency():
    adjacency = torch.tensor([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]])
    source, target = adjacency.nonzero().unbind(1)
    with_self = adjacency + torch.eye(3)
    degrees = with_self.sum(1, keepdim=True)
    layer, x = GcnLayer(4, 2), torch.randn(3, 4)

    expected = (with_self / (degrees * degrees.T).sqrt()) @ layer.linear(x) + layer.bias

    torch.testing.assert_close(layer(x, source, target, degrees), expected)
