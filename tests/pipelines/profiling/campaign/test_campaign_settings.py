"""Selection of a campaign's jobs, and errors of campaign files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from presage.errors import ConfigError, GraphError, ProfilingError
from presage.pipelines.profiling.campaign.campaign_file import read_campaign_file
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.graph_tracing import trace
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, all_configs, parse

ROOT = Path(__file__).parents[4]


def settings(**changes) -> CampaignSettings:
    wanted: dict[str, Any] = {"campaign": "test", "budget_s": 60}
    return CampaignSettings(**(wanted | changes))


def test_by_default_every_small_job_is_measured_in_its_usual_setting():
    assert settings().configs(large=False) == list(all_configs())


def test_sizes_follow_the_device_unless_they_are_set():
    assert settings().configs(large=True) == list(all_configs(large=True))
    assert settings(sizes="small").configs(large=True) == list(all_configs())


def test_every_job_is_measured_in_every_precision_and_by_every_optimizer():
    wanted = settings(
        families=("mlp",), precisions=("fp32", "bf16"), optimizers=("usual", "inference", "adamw")
    )
    configs = wanted.configs(large=False)
    of_one = [c for c in configs if (c.variant, c.batch_size) == ("w128-d2", 8)]

    assert {(c.optimizer, c.precision) for c in of_one} == {
        (optimizer, precision)
        for optimizer in (FAMILIES["mlp"].optimizer, "inference", "adamw")
        for precision in ("fp32", "bf16")
    }
    assert len(set(configs)) == len(configs)


def test_a_family_that_is_never_trained_is_measured_once():
    configs = settings(families=("llm_decode",), optimizers=("usual", "adam")).configs(large=False)

    assert {config.optimizer for config in configs} == {"inference"}
    assert len(set(configs)) == len(configs)


def test_batch_sizes_may_differ_from_the_familys():
    configs = settings(families=("mlp",), batch_sizes=(7,)).configs(large=False)

    assert {config.batch_size for config in configs} == {7}
    assert {config.variant for config in configs} == set(FAMILIES["mlp"].variants)


def test_contexts_and_batch_sizes_are_a_grid_of_the_served_models():
    configs = settings(
        families=("llm_decode",), contexts=(64, 128), batch_sizes=(2, 3), sizes="small"
    ).configs(large=True)

    models = {config.variant.rpartition("-")[0] for config in configs}
    assert models == set(FAMILIES["llm_decode"].served)
    assert len(configs) == len(models) * 2 * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precisions": ("fp8",)}, "no precision 'fp8'"),
        ({"optimizers": ("adm",)}, "no optimizer 'adm'; did you mean 'adam'"),
        ({"sizes": "huge"}, "no size 'huge'; known are small, large"),
        ({"sharing": ("mig",)}, "no sharing mode 'mig'"),
        ({"members": {1: 1.0}}, "members >= 2"),
        ({"members": {}}, "members >= 2"),
        ({"members": {2: 0.0}}, "not all 0"),
        ({"members": {2: float("nan")}}, "members >= 2"),
        ({"budget_s": float("nan")}, "budget_s=nan, must be a number"),
        ({"budget_s": float("inf")}, "budget_s=inf, must be a number"),
        ({"window_s": float("nan")}, "seconds > 0"),
        ({"batch_sizes": (0,)}, ">= 1"),
        ({"contexts": (64, 0)}, r"contexts=\[64, 0\], must be tokens >= 1"),
        (
            {"contexts": (64,), "families": ("mlp",)},
            "apply to llm_decode and llm_prefill only; add one of them to families",
        ),
        ({"solo_shares": (0.5,)}, "must contain 1.0"),
        ({"solo_shares": (1.0, 2.0)}, "above 0"),
        ({"models": ({"model": "nothing"},)}, "is not a job; use"),
        ({"models": ({"model": "a:b", "batch_sizes": [8], "speed": 1},)}, "is not a job"),
        ({"models": ({"model": "a:b", "batch_sizes": 8},)}, "is not a job"),
        ({"models": ({"model": "a:b", "batch_sizes": ["8"]},)}, "is not a job"),
        ({"models": ({"model": "a:b", "batch_sizes": [0]},)}, "is not a job"),
        ({"models": ({"model": "my-module:b", "batch_sizes": [8]},)}, "is not a job"),
        ({"models": ({"model": "a:b", "batch_sizes": [8], "optimizer": "x"},)}, "optimizer 'x'"),
    ],
)
def test_the_error_of_an_impossible_selection_has_a_remedy(changes, words):
    with pytest.raises(ProfilingError, match=words):
        settings(**changes)


# --- the file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_the_campaign_files_of_llms_are_of_one_campaign(kind):
    wanted = CampaignSettings(
        budget_s=60, **read_campaign_file(ROOT / f"benchmarks/profiling/llm_{kind}.yaml")
    )

    assert wanted.campaign == "cpu-2-llm-2026-11"
    assert {config.family for config in wanted.configs(large=True)} == {f"llm_{kind}"}


def test_the_shipped_campaign_file_is_valid():
    wanted = CampaignSettings(
        budget_s=60, **read_campaign_file(ROOT / "benchmarks/profiling/hopper.yaml")
    )

    assert wanted.campaign == "hopper"
    assert len(wanted.configs(large=True)) > 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("families: [resnet, resnt]", None),
        ("familes: [resnet]", "familes is not a setting; did you mean 'families'"),
        ("families: resnet", "families='resnet' is not a list; write"),
        ("precisions: [16]", "precisions=16 is not text"),
        ("members: [2, 3]", "members=.* is not a mapping"),
        ("members: {two: 1}", "members='two' is not an integer"),
        ("jobs: many", "jobs='many' is not an integer"),
        ("campaign: 7", "campaign=7 is not text"),
        ("- a\n- b", "no settings in the file"),
        ("a: [", "not YAML"),
        ("", "no settings in the file"),
    ],
)
def test_the_error_of_an_invalid_file_names_the_file_and_the_key(tmp_path, text, words):
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    if words is None:  # only the zoo knows its families
        with pytest.raises(ProfilingError, match="no family 'resnt'; did you mean 'resnet'"):
            settings(**read_campaign_file(path))
        return
    with pytest.raises(ConfigError, match=f"^{path}.*{words}"):
        read_campaign_file(path)


def test_the_error_names_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none.yaml: cannot be read"):
        read_campaign_file(tmp_path / "none.yaml")


# --- the user's own models ----------------------------------------------------------------------


def test_a_users_model_is_a_job_named_by_its_function(monkeypatch):
    monkeypatch.chdir(ROOT)
    described = {"model": "examples.my_model:classifier", "batch_sizes": [8], "optimizer": "adamw"}
    (config,) = settings(models=(described,)).user_models()

    assert config.name == "examples.my_model:classifier/b8/adamw"
    assert parse(config.name) == config
    assert trace(config).parameters == 620_810


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("examples.my_model:missing", "has no function 'missing'"),
        ("os:getcwd", "returned str"),
        ("math:sqrt", "RuntimeError|TypeError|returned"),
    ],
)
def test_the_error_of_a_users_failing_function_is_one_line(monkeypatch, function, words):
    monkeypatch.chdir(ROOT)
    with pytest.raises(GraphError, match=words) as refused:
        trace(JobConfig(function, "", 8))

    assert "\n" not in str(refused.value)
    assert function in str(refused.value)
