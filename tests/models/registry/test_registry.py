from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from presage.errors import ConfigError, RegistryError, ReleaseError
from presage.models.registry.champion import fetch_champion, find_champion
from presage.models.registry.mlflow_connection import MlflowConnection
from presage.models.registry.mlflow_run import Origin
from presage.models.registry.registry import Registry
from presage.models.registry.release_kind import PREDICTORS
from presage.models.registry.stored_releases import StoredReleases
from presage.models.registry.uri import configured_uri


@pytest.fixture
def registry(uri):
    return Registry(uri)


def aliases(registry):
    return {alias: r.version for r in registry.versions() for alias in r.aliases}


def folder(registry):
    return Path(registry.uri.removeprefix("sqlite:///")).parent


def artifacts(registry, version):
    run = folder(registry) / "artifacts" / registry.resolve(version).run_id
    return run / "artifacts" / "release"


def test_a_release_is_registered_once(registry, releases):
    first = registry.register(releases["good"], releases["good"].manifest["metrics"])
    again = registry.register(releases["good"], {})
    other = registry.register(releases["poor"], {})

    assert (first, again, other) == (1, 1, 2)
    assert [r.release_id for r in registry.versions()] == [
        releases["good"].release_id,
        releases["poor"].release_id,
    ]


def test_a_run_has_tags_and_metrics_to_search_by(registry, releases, uri):
    from mlflow.tracking import MlflowClient

    good = releases["good"]
    registry.register(good, good.manifest["metrics"])
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("presage").experiment_id
    runs = client.search_runs(
        [experiment],
        f"tags.release_id = '{good.release_id}' and metrics.`step_time.job.mlp.mape` < 11",
    )

    assert [run.data.tags["data_digest"] for run in runs] == ["e" * 64]
    assert runs[0].data.params["version.torch"] == "2.13.0"
    assert runs[0].data.metrics["step_time.family.mlp.coverage_80pct"] == 79.0


def test_a_run_has_the_provenance_and_plots_of_a_release(registry, make_release, uri, tmp_path):
    from mlflow.tracking import MlflowClient

    rows = [{"campaign": "lab", "machine": "m", "device_class": "gpu"}]
    counts = ("executions", "colocations", "held_out_executions", "held_out_colocations")
    data = {"folders": [], "rows": [row | dict.fromkeys(counts, 1) for row in rows]}
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "memory.png").write_bytes(b"a picture")
    params = {"train": {"hidden": [32, 64], "of the %": 0.5}, "x" * 9: "y" * 9000}
    curve = {"loss.memory.cpu.job.validation": [(1, 0.5), (20, 0.25)]}
    plots = tmp_path / "plots"
    origin = Origin("ada", "c0ffee", ("a.py", "b.py"), "the lock", params, plots, curve)
    release = make_release(tmp_path / "release", training_data=data)
    registry.register(release, {}, lambda: origin)

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("presage").experiment_id
    wanted = "tags.campaigns LIKE '%lab%' and tags.git_commit = 'c0ffee'"
    (run,) = client.search_runs([experiment], wanted)
    assert run.info.run_name == f"release {release.release_id}"
    history = client.get_metric_history(run.info.run_id, "loss.memory.cpu.job.validation")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (20, 0.25)]
    assert run.data.params["train.hidden"] == "[32, 64]"
    assert run.data.params["train.of the _"] == "0.5"
    assert run.data.tags["git_changed"] == "a.py, b.py"
    assert {path.path for path in client.list_artifacts(run.info.run_id)} >= {"dvc.lock", "plots"}
    (version,) = client.search_model_versions("name='presage' and tags.git_commit = 'c0ffee'")
    assert f"show {release.release_id} --lineage" in version.description
    assert registry.resolve(1).dvc_lock_sha256 == sha256(b"the lock").hexdigest()

    registry.register(release, {}, lambda: pytest.fail("it is known already"))


def test_promotion_sets_the_alias_previous(two):
    assert aliases(two) == {"champion": 1}
    two.set_challenger(2)
    champion = two.promote(2)

    assert aliases(two) == {"champion": 2, "previous": 1}
    assert champion.promoted_at
    assert not two.resolve(1).withdrawn_at  # the gate did it, not a person


def test_promoting_the_champion_changes_nothing(two):
    two.promote(2)
    two.promote(2, verdict="forced")

    assert aliases(two) == {"champion": 2, "previous": 1}


def test_rollback_swaps_champion_and_previous_and_withdraws_the_champion(two):
    two.promote(2)
    champion = two.rollback()

    assert champion.version == 1
    assert aliases(two) == {"champion": 1, "previous": 2}
    assert two.resolve(2).withdrawn_at

    assert two.rollback().version == 2
    assert aliases(two) == {"champion": 2, "previous": 1}
    assert not two.resolve(2).withdrawn_at


def test_rollback_without_a_previous_release_lists_the_registered_ones(two, releases):
    with pytest.raises(
        RegistryError, match=f"no previous.*{releases['poor'].release_id}, champion"
    ):
        two.rollback()


def test_rollback_works_when_the_champion_was_deleted(two):
    from mlflow.tracking import MlflowClient

    two.promote(2)
    MlflowClient(tracking_uri=two.uri).delete_model_version("presage", 2)

    assert two.champion() is None
    assert two.rollback().version == 1
    assert aliases(two) == {"champion": 1}


def test_a_release_is_found_by_alias_version_or_id_prefix(two, releases):
    release_id = releases["good"].release_id

    assert two.resolve("champion").version == 1
    assert two.resolve(2) == two.resolve("2") == two.resolve(release_id)
    assert two.resolve(release_id[:4]).version == 2


@pytest.mark.parametrize("ref", ["previous", "7", "ab", "nonsense"])
def test_an_unknown_name_is_an_error_that_lists_the_registered_releases(two, releases, ref):
    with pytest.raises(RegistryError, match=rf"no release '{ref}'.*{releases['good'].release_id}"):
        two.resolve(ref)


def test_a_download_is_the_release(two, releases, tmp_path):
    release = two.download(2, tmp_path / "here" / "release")

    assert release.release_id == releases["good"].release_id
    assert release.folder == tmp_path / "here" / "release"
    assert sorted(p.name for p in release.folder.iterdir()) == sorted(
        p.name for p in releases["good"].folder.iterdir()
    )
    assert list((tmp_path / "here").iterdir()) == [release.folder]


def test_a_download_replaces_only_a_release_folder(two, releases, tmp_path):
    target, other = tmp_path / "release", tmp_path / "thesis"
    two.download(1, target)
    assert two.download(2, target).release_id == releases["good"].release_id

    other.mkdir()
    (other / "chapter.txt").write_text("years of work")
    with pytest.raises(RegistryError, match="not a release folder"):
        two.download(1, other)
    assert (other / "chapter.txt").exists()


def test_a_corrupt_file_is_rejected_and_the_old_folder_stays(two, releases, tmp_path):
    two.download(1, tmp_path / "release")
    with (artifacts(two, 2) / "memory.onnx").open("ab") as file:
        file.write(b"x")

    with pytest.raises(ReleaseError, match=r"version 2 .*memory.onnx: sha256.*register it again"):
        two.download(2, tmp_path / "release")
    assert json.loads((tmp_path / "release" / "release.json").read_text())["release_id"] == (
        releases["poor"].release_id
    )
    assert not list(tmp_path.glob(".*partial"))


def test_files_of_another_release_are_rejected(two, tmp_path):
    shutil.rmtree(artifacts(two, 2))
    shutil.copytree(artifacts(two, 1), artifacts(two, 2))

    with pytest.raises(ReleaseError, match="its files are those of release"):
        two.download(2, tmp_path / "release")


def changed(path):
    path.write_bytes(path.read_bytes()[:-1] + b"x")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "changed": lambda stored: changed(stored / "step_time.onnx"),
    "gone": lambda stored: (stored / "memory.onnx").unlink(),
    "no JSON": lambda stored: (stored / "release.json").write_text("{"),
    "another's": lambda stored: shutil.copy(
        stored.parents[2] / "another" / "release.json", stored / "release.json"
    ),
    "all gone": shutil.rmtree,
    "not as MLflow knows it": lambda stored: (stored / "MLmodel").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("where", ["where it was", "moved"])
def test_registering_a_corrupt_release_again_repairs_it(two, releases, tmp_path, damage, where):
    import mlflow

    if where == "moved":
        there = folder(two).rename(tmp_path / "elsewhere")
        two = Registry(f"sqlite:///{there}/mlflow.db")
    before, files = two.versions(), sorted(p.name for p in artifacts(two, 1).iterdir())
    shutil.copytree(releases["good"].folder, folder(two) / "artifacts" / "another")
    DAMAGES[damage](artifacts(two, 1))

    assert two.register(releases["poor"], {}) == 1

    assert two.versions() == before
    assert sorted(p.name for p in artifacts(two, 1).iterdir()) == files
    assert not list(artifacts(two, 1).parent.glob(".*"))
    assert two.download(1, tmp_path / "release").release_id == releases["poor"].release_id
    champion = find_champion(two.uri)
    assert champion is not None
    assert fetch_champion(two.uri, champion, tmp_path / "cache").name == releases["poor"].release_id
    model = mlflow.models.Model.load(str(artifacts(two, 1)))
    assert (
        model.flavors["python_function"]["loader_module"]
        == "presage.serving.predictor.mlflow_model"
    )


def test_registering_an_intact_release_again_writes_nothing(two, releases):
    stamps = {path: path.stat().st_mtime_ns for path in folder(two).rglob("artifacts/**/*")}
    two.register(releases["poor"], {})

    assert stamps == {p: p.stat().st_mtime_ns for p in folder(two).rglob("artifacts/**/*")}


def test_a_moved_registry_works(two, releases, tmp_path):
    here = folder(two)
    there = here.rename(tmp_path / "elsewhere")
    moved = Registry(f"sqlite:///{there}/mlflow.db")

    assert moved.download(2, tmp_path / "release").release_id == releases["good"].release_id
    version = moved.register(releases["blind"], {})
    moved.download(version, tmp_path / "release")
    assert not here.exists()


def test_a_decision_is_stored_completely(two):
    decision = {"outcome": "promoted", "reason": "better", "rows": [{"metric": "mape"}] * 60}
    two.log_decision(2, decision, {"challenger": {"memory": {"coverage_80%": 81.0}}})

    assert two.resolve(2).decision == decision
    assert two.resolve(1).decision is None


def test_a_server_that_is_down_fails_fast():
    start_s = time.monotonic()
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9.*Connection refused.*--registry"):
        Registry("http://127.0.0.1:9").champion()
    assert time.monotonic() - start_s < 10


def test_a_database_that_cannot_be_created_fails_fast(tmp_path, releases):
    (tmp_path / "file").write_text("not a database, and not a folder")
    for path in (tmp_path / "file" / "mlflow.db", tmp_path, tmp_path / "file"):
        with pytest.raises(RegistryError, match="cannot be used as a database"):
            Registry(f"sqlite:///{path}").register(releases["good"], {})


def test_reading_does_not_create_a_registry(tmp_path):
    path = tmp_path / "typo" / "mlflow.db"
    with pytest.raises(RegistryError, match="registry does not exist"):
        Registry(f"sqlite:///{path}").versions()
    assert not path.parent.exists()


@pytest.mark.parametrize("uri", ["postgresql://host/db", "data/registry", "sqlite:///"])
def test_an_unknown_uri_scheme_is_an_error(uri):
    with pytest.raises(RegistryError, match="expected sqlite:///PATH"):
        Registry(uri)


def test_the_environment_overrides_params_yaml(tmp_path, monkeypatch):
    params = tmp_path / "params.yaml"
    monkeypatch.delenv("PRESAGE_REGISTRY", raising=False)
    assert configured_uri(params) == "sqlite:///data/registry/mlflow.db"
    params.write_text("registry: 'http://shared'")
    assert configured_uri(params) == "http://shared"
    monkeypatch.setenv("PRESAGE_REGISTRY", "sqlite:///mine.db")
    assert configured_uri(params) == "sqlite:///mine.db"


def test_the_old_key_of_the_registry_is_an_error_that_names_the_new_one(tmp_path, monkeypatch):
    monkeypatch.delenv("PRESAGE_REGISTRY", raising=False)
    params = tmp_path / "params.yaml"
    params.write_text("promote: {registry: 'http://shared'}")
    with pytest.raises(ConfigError, match=r"unknown key promote\.registry; .* as `registry:`"):
        configured_uri(params)


def test_an_experiment_created_by_another_process_is_used(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client, made = MlflowClient(uri, uri), []
    stored = StoredReleases(MlflowConnection(uri, PREDICTORS.model), PREDICTORS)
    ask = client.get_experiment_by_name

    def too_early(name):
        """Return None, while another process creates the experiment."""
        monkeypatch.setattr(client, "get_experiment_by_name", ask)
        made.append(stored.experiment(MlflowClient(uri, uri)))

    monkeypatch.setattr(client, "get_experiment_by_name", too_early)
    assert [stored.experiment(client)] == made
