"""Job zoo: training jobs of many families and sizes for the profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from presage.pipelines.profiling.running.training_step import INFERENCE, TrainingStep
from presage.pipelines.profiling.zoo import gnn, mlp, user_model
from presage.pipelines.profiling.zoo.decision import a3c, neumf, ppo, recommender_autoencoder, td3
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers import (
    convnext,
    densenet,
    efficientnet,
    inception,
    mobilenet,
    mobilenet_v3,
    resnet,
    vgg,
    vit,
)
from presage.pipelines.profiling.zoo.job_config import JobConfig, parse
from presage.pipelines.profiling.zoo.language import (
    deepspeech2,
    gpt,
    llama,
    llm_decode,
    llm_prefill,
    lora,
    lstm_lm,
    seq2seq_transformer,
    transformer_encoder,
)
from presage.pipelines.profiling.zoo.precision import apply_precision
from presage.pipelines.profiling.zoo.vision import (
    cyclegan,
    dcgan,
    diffusion,
    pointnet,
    unet,
    yolov3,
)
from presage.system.text.known_names import did_you_mean

__all__ = ["FAMILIES", "Family", "JobConfig", "all_configs", "build", "parse"]

FAMILIES: dict[str, Family] = {
    "a3c": a3c.FAMILY,
    "convnext": convnext.FAMILY,
    "cyclegan": cyclegan.FAMILY,
    "dcgan": dcgan.FAMILY,
    "deepspeech2": deepspeech2.FAMILY,
    "densenet": densenet.FAMILY,
    "diffusion": diffusion.FAMILY,
    "efficientnet": efficientnet.FAMILY,
    "gnn": gnn.FAMILY,
    "gpt": gpt.FAMILY,
    "inception": inception.FAMILY,
    "llama": llama.FAMILY,
    "llm_decode": llm_decode.FAMILY,
    "llm_prefill": llm_prefill.FAMILY,
    "lora": lora.FAMILY,
    "lstm_lm": lstm_lm.FAMILY,
    "mlp": mlp.FAMILY,
    "mobilenet": mobilenet.FAMILY,
    "mobilenet_v3": mobilenet_v3.FAMILY,
    "neumf": neumf.FAMILY,
    "pointnet": pointnet.FAMILY,
    "ppo": ppo.FAMILY,
    "recommender_autoencoder": recommender_autoencoder.FAMILY,
    "resnet": resnet.FAMILY,
    "seq2seq_transformer": seq2seq_transformer.FAMILY,
    "td3": td3.FAMILY,
    "transformer_encoder": transformer_encoder.FAMILY,
    "unet": unet.FAMILY,
    "vgg": vgg.FAMILY,
    "vit": vit.FAMILY,
    "yolov3": yolov3.FAMILY,
}


def build(config: JobConfig) -> TrainingStep:
    """Create the model, its data and its optimizer on the default device; the caller seeds.

    Raises
    ------
    ValueError
        The family, variant, optimizer or precision is unknown, or the batch size is below 1.
    """
    step = _build_user_model(config) if config.is_user_model else _build_zoo_model(config)
    for module in step.modules:
        apply_precision(module, config.precision, inference=config.optimizer == INFERENCE)
    return step


def _build_user_model(config: JobConfig) -> TrainingStep:
    return user_model.training_step(
        config.family, batch_size=config.batch_size, optimizer=config.optimizer
    )


def _build_zoo_model(config: JobConfig) -> TrainingStep:
    if config.family not in FAMILIES:
        raise ValueError(_unknown("family", config.family, FAMILIES, where="the job zoo"))
    family = FAMILIES[config.family]
    try:
        sizes = family.sizes(config.variant)
    except KeyError as error:
        where, known = f"family {config.family!r}", family.variants | family.large
        raise ValueError(_unknown("variant", config.variant, known, where=where)) from error
    if config.batch_size < 1:
        raise ValueError(
            f"job {config.name!r}: batch_size={config.batch_size}, must be >= 1; "
            f"the grid has {', '.join(map(str, family.batch_sizes or family.large_batch_sizes))}"
        )
    return family.build(batch_size=config.batch_size, optimizer=config.optimizer, **sizes)


def all_configs(*, large: bool = False, contexts: Sequence[int] = ()) -> tuple[JobConfig, ...]:
    """Return the complete grid, each family with its customary optimizer, in a fixed order.

    The result has the small variants, for a processor, or with ``large`` those for a GPU. With
    ``contexts``, families that serve LLMs have variants of these context lengths instead.
    """
    return tuple(
        JobConfig(family.name, variant, batch_size, family.optimizer)
        for _, family in sorted(FAMILIES.items())
        for variant in _variants(family, contexts, large=large)
        for batch_size in sorted(family.large_batch_sizes if large else family.batch_sizes)
    )


def _variants(family: Family, contexts: Sequence[int], *, large: bool) -> list[str]:
    if contexts and family.context:
        return family.in_contexts(contexts, large=large)
    return sorted(family.large if large else family.variants)


def _unknown(what: str, name: str, known: Iterable[str], *, where: str) -> str:
    return f"{where}: no {what} {name!r}; {did_you_mean(name, sorted(known))}"
