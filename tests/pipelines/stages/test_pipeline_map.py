"""dvc.yaml against the code: a stage that does not know what it depends on is not redone."""

from pathlib import Path

import grimp
import pytest
import yaml

from presage.features.colocation_member import SOLO_PROFILE
from presage.features.quantities.quantity_registry import QUANTITIES, solo_quantities

ROOT = Path(__file__).parents[3]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
# They move files and print; what is computed does not depend on them.
EDGES = {"presage.pipelines.stages.stage", "presage.errors"}


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("presage")


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "profile"])
def test_a_stage_depends_on_every_module_that_computes_in_it(stage, imports):
    definition = STAGES[stage].get("do", STAGES[stage])
    module = definition["cmd"].split()[2]  # python -m MODULE
    needed = {module, *imports.find_upstream_modules(module)} - EDGES
    needed = {name for name in needed if not name.startswith("presage.system.")}
    deps = [dep for dep in definition["deps"] if not dep.startswith("data/")]
    files = {f"{name.removeprefix('presage.').replace('.', '/')}.py" for name in needed}
    files = {file for file in files if (ROOT / file).is_file()}  # packages are not modules

    uncovered = [f for f in files if not any(f == d or f.startswith(f"{d}/") for d in deps)]
    assert not uncovered, f"add to stage {stage!r} of dvc.yaml: {sorted(uncovered)}"


def test_every_dependency_exists():
    for stage in STAGES.values():
        for dep in stage.get("do", stage)["deps"]:
            if not dep.startswith("data/"):
                assert (ROOT / dep).exists(), dep


def test_bytecode_is_no_dependency():
    assert "__pycache__/" in (ROOT / ".dvcignore").read_text().splitlines()


# Lists that DVC reads, which cannot follow the registry of quantities by themselves ---------------


def test_a_training_stage_for_every_solo_quantity():
    assert STAGES["train"]["foreach"] == list(solo_quantities())


def test_baselines_of_every_solo_quantity():
    files = {f"data/baselines/{name}.json" for name in solo_quantities()}

    assert STAGES["baselines"]["foreach"] == list(solo_quantities())
    assert files <= set(STAGES["evaluate"]["deps"])


def test_the_interference_stage_depends_on_the_solo_predictors_that_it_reads():
    deps = STAGES["train_interference"]["deps"]
    assert {dep for dep in deps if dep.startswith("data/models/")} == {
        f"data/models/{name}" for name in SOLO_PROFILE
    }


@pytest.mark.parametrize("name", QUANTITIES)
def test_training_settings_for_every_quantity(name):
    train = yaml.safe_load((ROOT / "params.yaml").read_text())["train"]

    assert name in train
    assert name in train["thousands"]


@pytest.mark.parametrize("name", QUANTITIES)
@pytest.mark.parametrize(
    "table", ["", "error_by_family/", "error_by_device/", "error_by_domain/", "loss/"]
)
def test_a_plot_of_every_quantity(name, table):
    plots = yaml.safe_load((ROOT / "dvc.yaml").read_text())["plots"]
    drawn = {path for plot in plots for of in plot.values() for path in of["y"]}

    assert f"data/evaluation/plots/{table}{name}.csv" in drawn
