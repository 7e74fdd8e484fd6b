"""dvc.yaml against the code: a stage that does not know what it depends on is not redone."""

from pathlib import Path

import grimp
import pytest
import yaml

ROOT = Path(__file__).parents[1]
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
