"""Provenance of releases, and releases trained on given measurements."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from presage.cli.training.models.group import app
from presage.errors import RegistryError
from presage.models.registry import lineage
from presage.models.registry.mlflow_run import Origin
from presage.models.registry.promotion_journal import current_user
from presage.models.registry.registry import Registry
from presage.models.release.manifest import job_digest
from presage.models.release.training_data import (
    BaseRelease,
    CampaignFolder,
    CampaignRows,
    TableFile,
    TrainingData,
)
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.stages.origin import read_origin

TABLE = b"the rows of this campaign"
SHA256 = hashlib.sha256(TABLE).hexdigest()
HELD_OUT = next(f"job-{i}" for i in range(99) if job_folds([f"job-{i}"])[0] == HELD_OUT_FOLD)


def make_training_data(
    *campaigns: str, machine="m1", through: BaseRelease | None = None
) -> TrainingData:
    folders = [
        CampaignFolder(f"data/profiles/{name}", (name,), {"executions": TableFile(9, SHA256)})
        for name in campaigns
    ]
    rows = [CampaignRows(name, machine, "processor", 5, 20, 2, 6) for name in campaigns]
    return TrainingData(tuple(folders), tuple(rows), through)


@pytest.fixture(scope="module")
def made(tmp_path_factory, make_release):
    """Releases by name, in order of registration."""
    root = tmp_path_factory.mktemp("made")
    base_release = BaseRelease(
        "0123456789ab", {"step_time-gpu": "9" * 64}, make_training_data("gavel")
    )
    result = {
        "older": None,
        "clean": make_training_data("good"),
        "faulty": make_training_data("good", "bad", through=base_release),
    }
    jobs = {"clean": ["resnet"], "faulty": ["resnet", "gpt"]}
    return {
        name: make_release(
            root / name,
            data_digest=name,
            training_data=one and one.as_json(),
            trained_on=[job_digest(job) for job in jobs.get(name, ())],
        )
        for name, one in result.items()
    }


@pytest.fixture
def call(uri, made, tmp_path, monkeypatch):
    """Function that runs `presage models ...` in a checkout; ``faulty`` is the champion."""
    registry = Registry(uri)
    origin = Origin("ada@lab", "c0ffee", ("params.yaml",), "stages: {}", {"seed": 1})
    for release in made.values():
        registry.register(release, {}, lambda: origin)
    registry.promote(3)
    monkeypatch.setenv("PRESAGE_REGISTRY", uri)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    for name, content in (("good", TABLE), ("bad", b"other rows")):
        folder = tmp_path / "data/profiles" / name
        folder.mkdir(parents=True)
        (folder / "executions.parquet").write_bytes(content)

    def invoke(*arguments):
        result = CliRunner().invoke(app, list(map(str, arguments)))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


# From a release


def test_lineage_has_files_lock_commit_tables_and_rows(call, made):
    faulty = made["faulty"]
    facts = json.loads(call("show", faulty.release_id, "--lineage", "--json"))

    assert facts["predictors"] == {
        path.stem: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in faulty.folder.glob("*.onnx")
    }
    assert facts["run"]["git_commit"] == "c0ffee"
    assert facts["run"]["git_changed"] == ["params.yaml"]
    assert facts["run"]["dvc_lock_sha256"] == hashlib.sha256(b"stages: {}").hexdigest()
    assert facts["run"]["registered_by"] == "ada@lab"
    assert facts["tables_here"] == {
        "data/profiles/good": {"executions": lineage.UNCHANGED},
        "data/profiles/bad": {"executions": lineage.CHANGED},
    }
    assert [row["campaign"] for row in facts["learnt_from"]["rows"]] == ["good", "bad"]
    assert facts["learnt_from"]["began_with"]["release_id"] == "0123456789ab"

    text = call("show", "champion", "--lineage")
    for part in (
        f"release {faulty.release_id} version 3, champion",
        "git commit c0ffee, modified: params.yaml",
        "data/profiles/bad",
        "campaign bad on machine m1: trained on 5 solo and 20 co-located rows, 2 and 6 held out",
        "fine-tuned from the networks of release 0123456789ab",
    ):
        assert part in text
    for line, state in (("good", lineage.UNCHANGED), ("bad", lineage.CHANGED)):
        after = text[text.index(f"data/profiles/{line}") :]
        assert after.splitlines()[1].endswith(state)


def test_lineage_of_an_older_release_reports_unknown_facts(call, made):
    text = call("show", made["older"].release_id, "--lineage")

    assert "unknown: the release does not record it" in text
    assert json.loads(call("show", "1", "--lineage", "--json"))["learnt_from"] is None


def test_lineage_accepts_the_folder_or_id_of_an_unregistered_release(call, make_release, tmp_path):
    here = make_release(Path("data/release"), data_digest="here")  # relative: of this checkout
    by_folder = json.loads(call("show", "data/release", "--lineage", "--json"))
    by_id = json.loads(call("show", here.release_id[:6], "--lineage", "--json"))

    assert by_folder == by_id
    assert (by_id["folder"], by_id["version"], by_id["run"]) == ("data/release", None, None)
    assert "not in this registry: run, commit and dvc.lock are unknown" in call(
        "show", "data/release", "--lineage"
    )
    with pytest.raises(RegistryError, match="no release 'f00d'"):
        call("show", "f00d", "--lineage")


def test_a_folder_with_the_name_of_an_alias_does_not_shadow_it(call):
    Path("champion").mkdir()
    assert json.loads(call("show", "champion", "--lineage", "--json"))["version"] == 3
    with pytest.raises(RegistryError, match="no release ''"):
        call("show", "", "--lineage")
    with pytest.raises(RegistryError, match="run the command twice"):
        call("show", "champion", "--lineage", "--download", "here")


def test_a_registered_release_is_found_by_its_folder(call, made):
    facts = json.loads(call("show", made["faulty"].folder, "--lineage", "--json"))
    assert (facts["version"], facts["run"]["git_commit"]) == (3, "c0ffee")


# To the releases


def found(call, *arguments):
    return json.loads(call("trained-on", *arguments, "--json"))


def trained_rows(call, *arguments):
    return {one["version"]: one["taught"] for one in found(call, *arguments)["releases"]}


def test_releases_trained_on_a_campaign_are_listed_with_a_remedy(call, made):
    result = found(call, "bad")

    assert [one["version"] for one in result["releases"]] == [3, 2, 1]
    assert [one["is_known"] for one in result["releases"]] == [True, True, False]
    assert trained_rows(call, "bad") == {3: 25, 2: 0, 1: 0}
    assert result["remedy"] == (
        f"champion {made['faulty'].release_id} was trained on 25 of these rows: version 2 is the "
        f"newest that was not, run `presage models promote {made['clean'].release_id} --force "
        "--reason TEXT`; "
        "remove data/profiles/bad from ingest and featurize in dvc.yaml, or the rows from its "
        "tables, then run `dvc repro`"
    )
    text = call("trained-on", "bad")
    assert "unknown" in text
    assert made["clean"].release_id not in text.partition("were not trained on these rows")[0]
    call("promote", made["clean"].release_id, "--force", "--reason", "bad sensors")
    assert found(call, "bad")["remedy"] == (
        f"champion {made['clean'].release_id} was trained on none"
    )


def test_the_remedy_after_a_bad_promotion_is_a_rollback(call, made, uri):
    registry = Registry(uri)
    registry.promote(2)
    registry.promote(3)
    assert (
        "the previous release was not, run `presage models rollback" in found(call, "bad")["remedy"]
    )
    registry.promote(1, verdict="forced", by="ada@lab")
    registry.promote(2)
    registry.promote(3, verdict="forced", by="ada@lab")  # 2 is withdrawn now, for some reason
    result = found(call, "bad")["remedy"]
    assert "version 2 was not, but it was withdrawn: see `presage models history`" in result


@pytest.mark.parametrize(
    ("campaign", "way"),
    [
        (
            "local",
            "remove the rows from data/profiles/local, run `dvc commit -f profile`, then run",
        ),
        (
            "tables",
            "list the outcomes in params.yaml under outcomes.withdrawn, then run `dvc repro`",
        ),
    ],
)
def test_the_remedy_for_a_rebuilt_campaign_is_at_its_source(
    call, uri, make_release, tmp_path, campaign, way
):
    folder = {"local": "data/profiles/local", "tables": "data/outcomes/tables"}[campaign]
    own = CampaignFolder(folder, (campaign,), {})
    rows = (CampaignRows(campaign, "m1", "processor", 5, 0, 0, 0),)
    release = make_release(
        tmp_path / "own",
        data_digest=campaign,
        training_data=TrainingData((own,), rows, None).as_json(),
    )
    registry = Registry(uri)
    registry.promote(registry.register(release, {}))

    assert way in found(call, campaign)["remedy"]


def test_a_release_with_missing_files_is_reported_as_unknown(call, uri, made):
    registry = Registry(uri)
    (lost,) = Path(uri.removeprefix("sqlite:///")).parent.glob(
        f"artifacts/{registry.resolve(2).run_id}/artifacts/release/release.json"
    )
    lost.unlink()
    result = found(call, "bad")["releases"]

    assert [(one["version"], one["is_known"]) for one in result] == [
        (3, True),
        (2, False),
        (1, False),
    ]


def test_usage_can_be_filtered_by_folder_machine_and_job(call):
    for name in ("data/profiles/bad/", "./data/profiles/bad", Path.cwd() / "data/profiles/bad"):
        assert trained_rows(call, name) == trained_rows(call, "bad")
    assert trained_rows(call, "--machine", "m1") == {3: 75, 2: 25, 1: 0}
    assert trained_rows(call, "good", "--machine", "m1") == {3: 25, 2: 25, 1: 0}
    assert trained_rows(call, "--job", "gpt") == {3: 1, 2: 0, 1: 0}
    assert trained_rows(call, "good", "--job", "resnet") == {3: 1, 2: 1, 1: 0}
    assert (
        "was trained on this job: version 2 is the newest" in found(call, "--job", "gpt")["remedy"]
    )
    assert trained_rows(call, "--job", HELD_OUT) == {3: 0, 2: 0, 1: 0}
    assert "is held out: no release is trained on it" in found(call, "--job", HELD_OUT)["remedy"]


def test_rows_of_a_base_release_are_reported_with_its_id(call, made):
    result = found(call, "gavel")
    assert result["releases"][0]["rows"][0]["through"] == "0123456789ab"
    assert "came with the networks of release 0123456789ab" in result["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [["bda"], ["good", "--machine", "x"], [], ["bda", "--job", "gpt"], ["--job", "gtp"]],
)
def test_an_unknown_name_is_a_one_line_error(call, arguments):
    words = (
        r"bad, gavel, good$|^nothing to search for; |trained on job 'gtp' of these .* jobs.parquet$"
    )
    with pytest.raises(RegistryError, match=words) as caught:
        call("trained-on", *arguments)
    assert "\n" not in str(caught.value)


# Where it is registered from


def git(*arguments):
    options = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *options, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_origin_has_commit_changes_lock_and_parameters(tmp_path, monkeypatch, releases):
    monkeypatch.chdir(tmp_path)
    release = releases["good"].folder
    assert read_origin(release) == Origin(by=current_user())

    Path("params.yaml").write_text("{train: {seed: 1}, registry: 'http://a:b@c', promote: {x: 2}}")
    Path("dvc.lock").write_text("of another release")
    Path(".gitignore").write_text("data\n")
    git("init", "-q")
    assert read_origin(release).git_commit == ""  # another's repository, or nothing committed yet
    git("add", ".")
    git("commit", "-qm", "first")
    origin = read_origin(release)
    assert origin.git_commit == git("rev-parse", "HEAD")
    assert (origin.git_changed, origin.dvc_lock, origin.dvc_lock_sha256) == ((), "", "")
    assert origin.params == {"train": {"seed": 1}, "promote": {"x": 2}}

    Path("dvc.lock").write_text("written by dvc repro")
    Path("params.yaml").write_text("train: {seed: 2}")
    Path("new.py").touch()
    assert set(read_origin(release).git_changed) == {"params.yaml", "new.py"}
