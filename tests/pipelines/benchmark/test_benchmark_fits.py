"""`presage benchmark fits-in-memory`: decisions about jobs that fit and jobs that did not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.features.tables.campaign import Campaign, read_campaign
from presage.models.training.fit import LEVELS
from presage.pipelines.benchmark import benchmark_run as benchmark
from presage.pipelines.benchmark.benchmark_rows import Rows
from presage.pipelines.benchmark.benchmark_task import Forecasts
from presage.pipelines.benchmark.fits import USABLE, FitsTask, decided, decision_figures
from presage.pipelines.benchmark.solo import CONFIG, SoloTask
from presage.pipelines.benchmark.tasks import TASKS
from presage.pipelines.importers.public_models.graph_cache import NoGraphs
from tests.features.examples import device, features, memory

PROFILES = Path(__file__).parents[3] / "data/profiles"
QUICK = replace(CONFIG, steps=30, hidden=8, ensemble=1)
TASK = FitsTask(SoloTask(QUANTITIES["memory"], lambda job: job.trains, "bytes", config=QUICK))
DECISIONS = {"wrong_fits", "wrong_refusals", "refused"}
GIB = 2.0**30


def no_progress(done, total):
    pass


def too_small(folder: str) -> Campaign:
    """Return a campaign of a machine with too little memory for a fifth of the jobs."""
    whole = read_campaign(PROFILES / folder)
    runs = whole.executions.astype({"memory_peak_bytes": "float64"})
    limit = runs["memory_peak_bytes"].quantile(0.8)
    out = runs["memory_peak_bytes"] > limit
    runs.loc[out, "failure"] = "out-of-memory"
    runs.loc[out, "memory_peak_bytes"] = np.nan
    devices = {
        key: replace(one, memory_bytes=int(limit / USABLE) + 1)
        for key, one in whole.devices.items()
    }
    return replace(whole, executions=runs, devices=devices)


def test_jobs_out_of_memory_are_predicted_and_not_trained_on(monkeypatch):
    campaign = too_small("cpu-2")
    monkeypatch.setitem(TASKS, "fits-in-memory", TASK)
    monkeypatch.setattr(benchmark, "read_tables", lambda *paths, **options: [campaign])

    result = benchmark.run("fits-in-memory", [], [], graphs=NoGraphs(), progress=no_progress)

    ran = sum(one["rows"] for one in result.slices["device"].values())
    assert 0.7 < ran / result.rows < 0.9
    assert np.isfinite(list(result.mlp.values())).all()
    assert result.mlp.keys() >= {"mape", "coverage", *DECISIONS}
    wrong = {name: figures["wrong_fits"] for name, figures in result.baselines.items()}
    # The middle of the jobs that ran says of nearly all that they fit.
    assert wrong["linear"] < wrong["constant"] < 100 - 100 * ran / result.rows + 1


def test_a_table_is_decided_by_networks_trained_on_another():
    train, test = (TASK.rows([too_small(name)]) for name in ("cpu-2", "cpu-2-zoo"))

    answers = TASK.forecast(train, test, seed=0, progress=no_progress)

    assert len(answers.quantiles) == len(test)
    assert np.isfinite(answers.quantiles).all()
    assert 0 <= answers.more["mlp"]["wrong_fits"] <= 100


# What is said to fit --------------------------------------------------------------------------


def figures(*, upper_gib: float, live_gib: float, ran: bool) -> dict[str, float]:
    """Return figures of one job on a 32 GiB device: forecast upper bound and traced bytes."""
    alive = memory(activation_bytes=int(live_gib * GIB))
    placement = Placement(replace(features(), memory=alive), device())
    rows = Rows(pd.DataFrame({"row": ["one"]}), [placement], np.array([1.0 if ran else np.nan]))
    quantiles = np.full((1, len(LEVELS)), upper_gib * GIB)
    return dict(decided(Forecasts(quantiles, {}), rows, {}).more["mlp"])


@pytest.mark.parametrize(
    ("upper_gib", "live_gib", "fits"),
    [
        (20, 10, True),
        (31.9, 10, False),  # the driver keeps some of the 32
        (20, 33, False),  # more is alive at once than the device has
    ],
)
def test_a_job_fits_if_forecast_and_live_bytes_are_below_the_device_memory(
    upper_gib, live_gib, fits
):
    assert figures(upper_gib=upper_gib, live_gib=live_gib, ran=False)["wrong_fits"] == 100 * fits
    assert figures(upper_gib=upper_gib, live_gib=live_gib, ran=True)["refused"] == 100 * (not fits)


@pytest.mark.parametrize(
    ("live_gib", "ran", "impossible"),
    [(5, False, 1), (15, False, 0), (33, True, 1), (33, False, 0), (5, True, 0)],
)
def test_impossible_labels_are_counted_separately(live_gib, ran, impossible):
    found = figures(upper_gib=6, live_gib=live_gib, ran=ran)

    assert found["impossible_labels"] == impossible


def test_figures_of_decisions():
    said, ran = np.array([1, 1, 1, 1, 0, 0], bool), np.array([1, 1, 1, 0, 0, 1], bool)

    assert decision_figures(said, ran) == {"wrong_fits": 25, "wrong_refusals": 50, "refused": 25}
    assert set(decision_figures(said[:0], ran[:0]).values()) == {0.0}
