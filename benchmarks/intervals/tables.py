"""The tables whose intervals are examined."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.intervals.left_out import Table
from presage.features.quantities.quantity_registry import COMPUTE_UTILIZATION, MEMORY, STEP_TIME
from presage.models.training.fit import FitConfig
from presage.pipelines.benchmark.interference import OUT_OF_DOMAIN, InterferenceTask
from presage.pipelines.benchmark.solo import CONFIG, SoloTask

OWN = ("data/profiles/cpu-2", "data/profiles/cpu-2-zoo")
# As in params.yaml for hundreds of rows.
SMALL = FitConfig(
    hidden=32, steps=600, learning_rate=0.01, weight_decay=3.0, ensemble=2, seed=0, batch=1024,
    jitter=0.3,
)  # fmt: skip
# One network instead of three, because each value of each split needs its own.
ONE = replace(CONFIG, ensemble=1)
PAIRS = InterferenceTask(
    acquainted=replace(OUT_OF_DOMAIN, steps=400), out_of_domain=replace(OUT_OF_DOMAIN, steps=400)
)
TRAINING_STEP = SoloTask(STEP_TIME, lambda job: job.trains, "seconds", config=ONE)
INFERENCE_STEP = SoloTask(STEP_TIME, lambda job: not job.trains, "seconds", config=ONE)
TIMM = ("timm/timm_step_time.parquet",)
TORCHVISION = ("torchvision/torchvision_step_time.csv.gz",)
TABLES = (
    *(
        Table(
            f"{name}, two CPU cores",
            SoloTask(one, lambda job: True, one.unit, config=SMALL),
            OWN,
            ("group",),
            is_public=False,
        )
        for name, one in (
            ("Step time", STEP_TIME), ("Memory", MEMORY), ("Utilization", COMPUTE_UTILIZATION),
        )
    ),
    Table("Slowdown of pairs, two CPU cores", PAIRS, OWN, ("group",), is_public=False),
    Table(
        "Slowdown of pairs, Gavel", PAIRS, ("gavel/pairs.csv.gz", "gavel/isolated.csv.gz"),
        ("group", "device"),
    ),
    Table("Slowdown of pairs, Lucid", PAIRS, ("lucid/pairs.csv", "lucid/solo.csv"), ("group",)),
    Table(
        "Training step, six GPUs",
        TRAINING_STEP, TORCHVISION, ("group", "device"),
    ),
    Table(
        "Inference step, six GPUs",
        INFERENCE_STEP, TORCHVISION, ("group", "device"),
    ),
    Table(
        "Training step, RTX 3090",
        TRAINING_STEP, TIMM, ("group", "release"),
    ),
    Table(
        "Training step, both sources",
        TRAINING_STEP,
        (*TIMM, *TORCHVISION), ("source",),
    ),
    Table(
        "Inference step, three GPUs",
        INFERENCE_STEP, TIMM, ("release", "device"),
    ),
)  # fmt: skip
