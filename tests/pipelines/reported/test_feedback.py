"""Training on reported outcomes: forecasts follow a device that has become slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from presage.features.quantities.quantity_registry import QUANTITIES
from presage.features.tables.campaign import read_campaign
from presage.features.tables.schemas import REPORTED_SOURCE
from presage.models.training.fit import FitConfig
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.reported.recency import DAY_S, Recency
from presage.pipelines.stages import featurize, train
from presage.pipelines.stages.featurize import drop_superseded, row_weights
from presage.pipelines.stages.fit_settings import FineTuning, Settings
from presage.pipelines.stages.ingest import ingest
from presage.serving.outcomes.outcome import Outcome
from tests.pipelines.reported.outcome_examples import RECENCY, log_of
from tests.support.small_campaign import small_campaign

SLOWER = 1.3
CONFIG = FitConfig(
    hidden=32, steps=300, learning_rate=0.01, weight_decay=3.0, ensemble=1, seed=0, jitter=0.3
)
SETTINGS = Settings(CONFIG, CONFIG, 10**6, FineTuning(5, 0.01, 300.0, 32))


def reports_of(folder, times, now_s):
    """Return outcomes of every job of a campaign, slower by a factor."""
    campaign = read_campaign(folder)
    out = []
    for i, row in enumerate(campaign.executions.to_dict("records")):
        placement = campaign.placement(row)
        job = replace(placement.job, job=replace(placement.job.job, job_id=f"run {i}"))
        out.append(
            Outcome(
                f"agent/{i}", job, placement.device, placement.share,
                finished_at_unix_s=now_s, step_time_median_s=times * row["step_time_median_s"],
            )
        )  # fmt: skip
    return out


def held_out_error(forecasts, truth):
    """Return the median relative error of forecasts of the held-out jobs."""
    rows = forecasts[
        (forecasts["split"] == "job")
        & (forecasts["features"] == "full")
        & (forecasts["fold"] == HELD_OUT_FOLD)
    ].drop_duplicates("job_id")
    measured = rows["job_id"].map(truth).to_numpy(np.float64)
    return float(np.median(np.abs(rows["q0.5"] / measured - 1)))


@pytest.mark.timeout(600)
def test_forecasts_follow_a_device_that_became_slower(tmp_path):
    campaign = small_campaign(tmp_path / "profiles" / "cpu-2")
    # The server's clock, by which the reports are newer than the campaign.
    log = log_of(tmp_path / "log.db", reports_of(campaign, SLOWER, now_s=0.0))
    done = ingest(
        [log], tmp_path / "tables", recency=RECENCY, profiles=tmp_path / "profiles", pretrained=None
    )
    assert done.quarantined == {}

    forecasts = {}
    for name, folders in {"before": [campaign], "after": [tmp_path / "tables", campaign]}.items():
        featurize.featurize(folders, tmp_path / name, recency=RECENCY)
        solo = pd.read_parquet(tmp_path / name / "solo.parquet")
        forecasts[name] = train.train(solo, QUANTITIES["step_time"], SETTINGS, {}).forecasts
    measured = read_campaign(campaign).executions.set_index("job_id")["step_time_median_s"]

    then = held_out_error(forecasts["before"], measured)
    stale = held_out_error(forecasts["before"], SLOWER * measured)
    learnt = held_out_error(forecasts["after"], SLOWER * measured)
    assert stale > then + 0.05
    assert learnt < then + 0.02


def test_no_held_out_job_is_trained_on_under_another_name(tmp_path):
    campaign = small_campaign(tmp_path / "profiles" / "cpu-2")
    log = log_of(tmp_path / "log.db", reports_of(campaign, 1.0, now_s=0.0))
    ingest([log], tmp_path / "tables", recency=RECENCY, profiles=campaign.parent, pretrained=None)
    featurize.featurize([tmp_path / "tables", campaign], tmp_path / "features", recency=RECENCY)

    solo = pd.read_parquet(tmp_path / "features" / "solo.parquet")
    fold = job_folds(list(solo["job_id"]))
    by_content = solo.groupby([f"full.{c}" for c in ("flops", "bytes_moved", "batch_size")])
    assert solo["campaign"].nunique() == 2
    assert all(len(set(fold[rows])) == 1 for rows in by_content.indices.values())
    assert set(solo["job_id"]) == set(read_campaign(campaign).jobs)


def rows_of(*values):
    names = ["source", "measured_at_s", "job_id", "device_kind", "share", "step_time_median_s"]
    told = pd.DataFrame(values, columns=names)
    return told.assign(compute_utilization=0.5, memory_peak_bytes=np.nan, power_w=np.nan)


def test_weights_halve_with_every_half_life_before_the_newest_report():
    now_s = 1.7e9
    rows = rows_of(
        ("presage profile", now_s + DAY_S, "a", "cpu-2", 1.0, 1.0),
        (REPORTED_SOURCE, now_s, "b", "cpu-2", 1.0, 1.0),
        (REPORTED_SOURCE, now_s - 5 * DAY_S, "c", "cpu-2", 1.0, 1.0),
        (REPORTED_SOURCE, now_s - 10 * DAY_S, "d", "cpu-2", 1.0, 1.0),
    )

    found = row_weights(rows, Recency(half_life_days=5, most_weight=4, newest_runs=3))
    assert found.tolist() == [1, 4, 2, 1]
    assert row_weights(rows[:1], RECENCY).tolist() == [1]


def test_later_reports_replace_measurements():
    rows = rows_of(
        ("presage profile", 100, "a", "cpu-2", 1.0, 1.0),
        ("presage profile", 300, "b", "cpu-2", 1.0, 1.0),  # measured after the report
        ("presage profile", 100, "a", "cpu-4", 1.0, 1.0),  # elsewhere
        (REPORTED_SOURCE, 200, "a", "cpu-2", 1.0, 1.3),
        (REPORTED_SOURCE, 200, "b", "cpu-2", 1.0, 1.3),
    )

    left = drop_superseded(rows)
    assert left["step_time_median_s"].notna().tolist() == [False, True, True, True, True]
    assert left["compute_utilization"].notna().tolist() == [False, True, True, True, True]
