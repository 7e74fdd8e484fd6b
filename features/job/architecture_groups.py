"""Coarse architecture groups: families of models whose steps do the same kind of work.

A split by family is often near: with ``resnetaa`` left out, ``resnet`` stays in training, and
differs from it in one pooling layer. A split by group leaves out all of them.

A family belongs to the group of the block in which its models spend most of their step, not to that
of its paper. A block with attention added to convolutions is a hybrid; a residual bottleneck with a
gate, such as squeeze-and-excitation, stays a bottleneck, because the gate takes few FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping

# Families are those of the job zoo and of the importers (the first word of a timm name).
GROUPS: Mapping[str, tuple[str, ...]] = {
    # Residual bottlenecks of dense or grouped 3 x 3 convolutions, with gates or without.
    "resnet": (
        "ecaresnet", "ecaresnetlight", "ecaresnext", "gcresnet", "gcresnext", "nfnet", "res2net",
        "res2next", "resnest", "resnet", "resnetaa", "resnetblur", "resnetrs", "resnext", "senet",
        "seresnet", "seresnetaa", "seresnext", "seresnextaa", "skresnet", "skresnext", "tresnet",
        "wide",
    ),
    "regnet": ("regnet", "regnetv", "regnetx", "regnety", "regnetz"),
    # Residual bottlenecks whose 3 x 3 convolution is replaced by attention in some stages.
    "attention_resnet": (
        "botnet", "botnext", "halo2botnet", "halonet", "halonext", "sebotnet", "sehalonet",
    ),
    # Cross-stage partial and Darknet stages, detectors on them included.
    "darknet": (
        "cs", "cs3darknet", "cs3edgenet", "cs3sedarknet", "cspresnet", "cspresnext", "darknet",
        "darknetaa", "gernet", "sedarknet", "yolov3",
    ),
    # Every layer reads the concatenation of all before it.
    "densenet": ("densenet", "densenetblur", "rdnet"),
    # Plain stacks of 3 x 3 convolutions, also after re-parametrization.
    "vgg": ("alexnet", "repvgg", "vgg"),
    # Parallel branches, found by hand or by search.
    "inception": ("googlenet", "inception", "nasnetalarge", "pnasnet5large", "xception"),
    # Trees and parallel streams that are aggregated.
    "aggregation": ("dla", "dpn", "hgnet", "hrnet", "selecsls", "vovnet"),
    # Inverted residuals with depthwise convolutions, and cheap replacements of them.
    "mobilenet": (
        "efficientnet", "fbnet", "ghostnet", "hardcorenas", "lcnet", "mixnet", "mnasnet",
        "mobilenet", "mobilenet_v3", "mobileone", "repghostnet", "rexnet", "rexnetr", "semnasnet",
        "shufflenet", "tinynet",
    ),
    "squeezenet": ("squeezenet",),
    # Large depthwise kernels, then pointwise layers.
    "convnext": (
        "convmixer", "convnext", "fasternet", "focalnet", "mambaout", "starnet",
    ),
    # Global attention over patches, one resolution.
    "vit": (
        "aim", "beit", "cait", "convit", "deit", "eva", "flexivit", "naflexvit", "sam", "tnt",
        "vit", "vitamin", "volo", "xcit",
    ),
    # Attention over windows or pooled tokens, several resolutions.
    "hierarchical_vit": (
        "crossvit", "davit", "gcvit", "hieradet", "mvit", "nest", "pit", "pvt", "swin", "twins",
    ),
    # Stages of convolutions, then stages of attention.
    "hybrid_vit": (
        "coat", "coatnet", "coatnext", "edgenext", "efficientformer", "efficientvit", "fastvit",
        "levit", "maxvit", "maxxvit", "mobilevit", "nextvit", "shvit", "swiftformer", "visformer",
    ),
    "mixer": ("gmixer", "gmlp", "mixer", "resmlp", "sequencer"),
    "mlp": ("mlp",),
    "recommender": ("neumf", "recommender_autoencoder"),
    "transformer": (
        "gpt", "llama", "llm_decode", "llm_prefill", "lora", "seq2seq_transformer",
        "transformer_encoder",
    ),
    "recurrent": ("deepspeech2", "lstm_lm"),
    "gan": ("cyclegan", "dcgan"),
    "unet": ("diffusion", "unet"),
    "agent": ("a3c", "ppo", "td3"),
    "graph": ("gnn", "pointnet"),
}  # fmt: skip
_GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}


def architecture_group(family: str) -> str:
    """Return the group of a family; a family in no group is a group of its own."""
    return _GROUP_OF.get(family, family)
