"""`presage benchmark` on the committed campaigns: input, errors and output."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from presage.cli.app import app
from presage.errors import ConfigError, TableError, TrainingError
from presage.features.tables.campaign import read_campaign
from presage.models.calibration.error_metrics import point_metrics
from presage.models.training import baselines
from presage.models.training.fit import LEVELS
from presage.pipelines.benchmark import benchmark_run as benchmark
from presage.pipelines.benchmark.benchmark_rows import METADATA_COLUMNS
from presage.pipelines.benchmark.benchmark_splits import (
    make_folds,
    novelties,
    novelty,
    split_folds,
)
from presage.pipelines.benchmark.novel_rows import calibrate_novel
from presage.pipelines.benchmark.solo import SoloTask
from presage.pipelines.benchmark.tasks import TASKS
from presage.pipelines.importers.public_models.graph_cache import NoGraphs
from tests.pipelines.benchmark.blind import assert_blind
from tests.pipelines.public_files import real

PROFILES = Path(__file__).parents[3] / "data/profiles"
TRAIN, TEST = PROFILES / "cpu-2", PROFILES / "cpu-2-zoo"
SUMS: dict[str, SoloTask] = {n: t for n, t in TASKS.items() if isinstance(t, SoloTask)}
POINTS = {"mape", "median_ape", "within_10pct", "mae", "rmsle"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Train networks of a few steps: their quality is not tested here."""
    for name, task in SUMS.items():
        config = replace(task.config, steps=30, hidden=8, ensemble=1)
        monkeypatch.setitem(TASKS, name, replace(task, config=config))


def run(task="train-step", train=(TRAIN,), test=(), **options):
    return benchmark.run(
        task, train, test, graphs=NoGraphs(), progress=lambda done, total: None, **options
    )


@pytest.mark.parametrize("task", ["train-step", "train-memory", "utilization"])
def test_a_table_is_scored_by_another_with_three_baselines(task):
    result = run(task, test=[TEST])

    assert result.split == "test"
    assert result.rows > 50
    assert {*POINTS, "coverage", "interval_width"} <= result.mlp.keys()
    assert list(result.baselines) == ["constant", "linear", "boosted_trees"]
    assert all(figures.keys() == POINTS for figures in result.baselines.values())
    assert np.isfinite([*result.mlp.values()]).all()


@pytest.mark.parametrize("split", ["job", "model", "family", "group"])
def test_each_row_is_scored_once_by_networks_not_trained_on_its_group(split):
    result = run(split=split)

    assert result.rows == sum(one["rows"] for one in result.slices["family"].values())
    assert 0 <= result.mlp["coverage"] <= result.mlp["coverage_90"] <= 100


@pytest.mark.parametrize(
    ("task", "split"), [("train-step", "family"), ("train-memory", "job"), ("utilization", "job")]
)
def test_no_forecast_of_a_held_out_row_depends_on_its_label(task, split, monkeypatch):
    monkeypatch.delitem(baselines.BASELINES, "boosted_trees")  # minutes, and masked as the others
    rows = TASKS[task].rows([read_campaign(TRAIN)])
    asked = (folds := split_folds(rows.metadata, split, seed=0)) == folds[0]
    told = replace(rows, measured=np.where(asked, 0.6 * rows.measured, rows.measured))
    told_others = replace(rows, measured=np.where(asked, rows.measured, 0.6 * rows.measured))
    before, after, other = (
        TASKS[task].cross_forecast(one, split, seed=0, progress=lambda done, total: None)
        for one in (rows, told, told_others)
    )
    assert_blind(asked, before, after, other)


def test_figures_are_in_readable_units(monkeypatch):
    monkeypatch.delitem(baselines.BASELINES, "boosted_trees")
    utilization, memory = run("utilization"), run("train-memory")

    assert (utilization.unit, memory.unit) == ("percentage points", "MiB")
    assert 1 < utilization.mlp["mae"] < 100
    assert 1 < memory.mlp["mae"] < 4096
    assert utilization.mlp["interval_width_90"] > utilization.mlp["interval_width"]


def test_a_utilization_of_zero_is_a_measurement(monkeypatch):
    campaign = read_campaign(TRAIN)
    campaign.executions.loc[:9, "compute_utilization"] = 0.0
    rows = TASKS["utilization"].rows([campaign])

    assert (rows.measured == 0).sum() == 10
    assert np.isfinite([*point_metrics(rows.measured, rows.measured + 0.1).values()]).all()


def test_the_same_seed_gives_the_same_figures(monkeypatch):
    monkeypatch.delitem(baselines.BASELINES, "boosted_trees")
    first, again = run(seed=3), run(seed=3)

    assert (first.mlp, first.baselines) == (again.mlp, again.baselines)
    assert run(seed=4).mlp != first.mlp


def test_the_command_prints_only_json():
    words = ["benchmark", "train-step", "--train", str(TRAIN), "--test", str(TEST), "--json"]

    printed = json.loads(CliRunner().invoke(app, words).stdout)

    assert {"task", "split", "rows", "mlp", "baselines", "floor", "seconds"} <= printed.keys()
    assert printed["floor"]["rows"] > 0  # the solo references of co-locations


def test_an_option_takes_several_files(monkeypatch):
    monkeypatch.delitem(baselines.BASELINES, "boosted_trees")
    words = ["benchmark", "train-step", "--train", str(TRAIN), str(TEST), "--json"]

    printed = json.loads(CliRunner().invoke(app, words).stdout)

    assert printed["rows"] > run().rows


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no column", "no number"])
def test_the_error_names_a_corrupt_file_by_the_given_path(tmp_path, damage):
    path = tmp_path / "mine.csv.gz"
    rows = pd.read_csv(real("gpumemnet") / "mlp_train_utilization_a100_40gb.csv.gz", nrows=30)
    whole = gzip.compress(rows.to_csv(index=False).encode())
    content = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:40] + bytes([whole[40] ^ 255]) + whole[41:],
        "empty": b"",
        "no column": gzip.compress(b"a,b\n1,2\n"),
        "no number": gzip.compress(rows.assign(**{"Avg GPUTL": "much"}).to_csv().encode()),
    }[damage]
    path.write_bytes(content)

    with pytest.raises(TableError, match=r"mine\.csv\.gz") as caught:
        run("utilization", train=[path])
    assert "\n" not in str(caught.value)
    assert "presage-benchmark-" not in str(caught.value)


def test_a_test_table_of_another_source_is_refused(tmp_path):
    path = tmp_path / "of_miso.csv"
    path.write_text("mig_slice,step_time_median_s\n7g,0.1\n")

    said = r"of_miso\.csv: has the columns of miso, but --train has those"
    with pytest.raises(TableError, match=said):
        run(test=[path])


@pytest.mark.parametrize(
    "words",
    [
        ["--train", "--json"],
        ["--train", str(TRAIN), "--test", "--json"],
        ["--train", str(TRAIN), "--seed", "-1"],
        ["--train", str(TRAIN), "--seed", str(2**64)],
    ],
)
def test_invalid_options_are_errors(words):
    result = CliRunner().invoke(app, ["benchmark", "train-step", *words])

    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_the_error_names_a_test_row_that_is_also_in_training():
    with pytest.raises(TableError, match=r"165 rows of --test are also in --train \(.+ of cpu-2"):
        run(test=[TRAIN])


def test_a_split_with_an_empty_side_is_an_error():
    with pytest.raises(TrainingError, match="leaves one side empty: there is only 'cpu-2'"):
        run(split="device")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "train-steps"}, "no task 'train-steps'; did you mean 'train-step'"),
        ({"split": "famly"}, "no split 'famly'; did you mean 'family'"),
        ({"split": "model", "test": [TEST]}, "use --test or --split, not both"),
    ],
)
def test_impossible_requests_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        run(**options)


def test_the_error_of_another_schema_lists_the_known_columns(tmp_path):
    path = tmp_path / "strange.csv"
    path.write_text("a,b\n1,2\n")

    with pytest.raises(TableError, match=r"strange\.csv: columns a, b are of no known source"):
        run(train=[path])


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(TableError, match=r"nowhere\.csv: no such file"):
        run(train=[tmp_path / "nowhere.csv"])


def test_the_error_of_too_few_rows_says_how_many_are_needed(monkeypatch):
    keep_rows(monkeypatch, rows=10)

    with pytest.raises(TrainingError, match="10 rows can be used, but calibration needs 20"):
        run()


def test_a_constant_target(monkeypatch):
    keep_rows(monkeypatch, rows=50, constant=0.25)

    with pytest.raises(TrainingError, match=r"the target is 0\.25 in every row"):
        run()


def keep_rows(monkeypatch, *, rows, constant=None):
    """Keep this many rows of the task, all with one label if requested."""

    class Few(SoloTask):
        def rows(self, campaigns):
            found = super().rows(campaigns).take(np.arange(rows))
            if constant is None:
                return found
            return replace(found, measured=0 * found.measured + constant)

    whole = SUMS["train-step"]
    keep_rows = Few(whole.quantity, whole.required, whole.unit)
    monkeypatch.setitem(TASKS, "train-step", keep_rows)


# Splits ---------------------------------------------------------------------------------------


def make_rows(**columns):
    rows = len(next(iter(columns.values())))
    defaults = {name: ["same"] * rows for name in METADATA_COLUMNS}
    return pd.DataFrame(defaults | columns)


def test_equal_groups_share_a_fold_and_folds_have_as_many_groups():
    groups = [f"model {i % 23}" for i in range(100)]

    folds = make_folds(groups, seed=0)

    assert all(len(set(folds[np.array(groups) == g])) == 1 for g in groups)
    sizes = [len({g for g, f in zip(groups, folds, strict=True) if f == fold}) for fold in range(5)]
    assert max(sizes) - min(sizes) <= 1
    assert (make_folds(groups, seed=1) != folds).any()


def test_each_device_is_a_fold_of_its_own():
    folds = split_folds(make_rows(device=["a", "b", "c", "d", "e", "f", "a"]), "device", seed=0)

    assert len(set(folds)) == 6


def test_calibration_holds_out_the_attribute_that_most_test_rows_lack(caplog):
    train = make_rows(
        device=["a", "b"] * 20, family=["x", "x", "y", "y"] * 10, model=["1", "2", "3", "4"] * 10
    )

    assert (
        novelty(train, make_rows(device=["c"] * 2, family=["x"] * 2, model=["1"] * 2)) == "device"
    )
    assert (
        novelty(train, make_rows(device=["a"] * 2, family=["z"] * 2, model=["9"] * 2)) == "family"
    )
    assert novelty(train, make_rows(device=["a"] * 2, family=["x"] * 2, model=["9"] * 2)) == "model"
    assert novelty(train, make_rows(device=["a"] * 2, family=["x"] * 2, model=["1"] * 2)) == "job"
    assert not caplog.messages
    # A device of six rows teaches nothing, and tells nothing of another.
    lone = make_rows(device=["a"] * 34 + ["b"] * 6, family=["x"] * 40, model=["1"] * 40)
    assert novelty(lone, make_rows(device=["c"] * 2, family=["x"] * 2, model=["1"] * 2)) == "job"
    assert "hardly more than one device" in caplog.text


def test_the_farthest_column_that_is_new_counts(caplog):
    train = make_rows(
        device=["a", "b"] * 20, group=["g", "g", "h", "h"] * 10, family=["x", "x", "y", "y"] * 10,
        model=["1", "2", "3", "4"] * 10, release=["2.1", "2.4"] * 20,
    )  # fmt: skip
    test = make_rows(
        device=["a", "c", "a", "a", "a"], group=["g", "g", "k", "g", "g"],
        family=["x", "x", "z", "z", "x"], model=["1", "1", "9", "9", "9"],
        release=["2.1", "2.9", "2.1", "2.1", "2.4"],
    )  # fmt: skip

    found = {name: list(map(int, new)) for name, new in novelties(train, test).items()}

    assert found == {
        "device": [0, 1, 0, 0, 0], "release": [0, 1, 0, 0, 0], "group": [0, 0, 1, 0, 0],
        "family": [0, 0, 0, 1, 0], "model": [0, 0, 0, 0, 1],
    }  # fmt: skip
    assert not caplog.messages
    # A job that is far from the training domain counts as one of a new group.
    far = novelties(train, test, far=np.array([True, False, False, True, False]))
    assert list(map(int, far["group"])) == [1, 0, 1, 1, 0]
    assert "family" not in far
    # With one group in training, families stand in for groups.
    alone = novelties(train.assign(group="g"), test)
    assert list(map(int, alone["family"])) == [0, 0, 1, 1, 0]
    assert "hardly more than one group" in caplog.text


def test_rows_on_a_new_device_have_wider_intervals():
    rng = np.random.default_rng(0)
    devices = np.repeat(np.array(["a", "b", "c", "d", "e"], dtype=object), 40)
    y = np.repeat([-1.0, -0.5, 0.0, 0.5, 1.0], 40) + 0.1 * rng.normal(size=200)
    zero = np.zeros((200, len(LEVELS)))
    train, test = make_rows(device=devices), make_rows(device=["a", "z"])
    new = {"device": np.array([False, True])}

    found = calibrate_novel(y, {"device": zero}, train, zero[:2], test, new)

    assert (found[0] == 0).all()
    assert found[1, LEVELS.index(0.9)] == pytest.approx(1, abs=0.3)
    assert (np.diff(found[1]) >= 0).all()
