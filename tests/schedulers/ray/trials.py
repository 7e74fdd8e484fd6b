"""Trials of the tests: a job of the zoo, and how it loads its samples."""

from __future__ import annotations

from pathlib import Path

from presage.features.job.data_loading import DataLoading
from presage.features.tables.campaign import read_campaign

PROFILES = Path(__file__).parents[3] / "data/profiles"
TRIAL = read_campaign(PROFILES / "cpu-2").jobs["resnet/w16-d8/b8/sgd"]
# Each step waits 48 ms for its samples, in which it occupies no core.
WAITING = DataLoading(sample_s=0.006, sample_cpu_s=0.0, workers=0, batch_size=8)
