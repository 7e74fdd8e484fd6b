"""Training data in the manifest of a release."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ReleaseError
from presage.models.release.release import MANIFEST, load_release
from presage.models.release.release_id import content_id
from presage.models.release.training_data import (
    BaseRelease,
    CampaignFolder,
    CampaignRows,
    TableFile,
    TrainingData,
    parse_training_data,
    read_training_data,
)

SHIPPED = Path(__file__).parents[3] / "data/pretrained/release"
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
counts = st.integers(0, 2**40)
rows = st.builds(
    CampaignRows,
    names, names, st.sampled_from(["processor", "gpu"]), counts, counts, counts, counts,
)  # fmt: skip
folders = st.builds(
    CampaignFolder,
    names,
    st.lists(names, max_size=3).map(tuple),
    st.dictionaries(names, st.builds(TableFile, counts, names), max_size=3),
)
own = st.builds(
    TrainingData, st.lists(folders, max_size=3).map(tuple), st.lists(rows, max_size=3).map(tuple)
)
beginnings = st.builds(
    BaseRelease, names, st.dictionaries(names, names, max_size=2), st.none() | own
)
training_data = st.builds(
    lambda one, before: replace(one, base_release=before), own, st.none() | beginnings
)

NETWORKS = BaseRelease(
    "ac98ca1622a9",
    {"step_time-gpu": "9" * 64},
    TrainingData((), (CampaignRows("gavel", "v100", "gpu", 78, 2106, 0, 0),)),
)
EXAMPLE = TrainingData(
    (CampaignFolder("data/profiles/a", ("a",), {"executions": TableFile(12, "0" * 64)}),),
    (CampaignRows("a", "m1", "processor", 8, 20, 4, 6),),
    NETWORKS,
)
AS_JSON = EXAMPLE.as_json()
RENAMED = replace(EXAMPLE.folders[0], folder="elsewhere")


@given(training_data)
def test_training_data_survives_a_round_trip(one):
    assert parse_training_data(json.loads(json.dumps(one.as_json()))) == one
    assert parse_training_data(one.as_json()) == one


def test_rows_of_a_base_release_are_yielded_with_its_id():
    assert [(group.campaign, through) for group, through in EXAMPLE.all_rows()] == [
        ("a", ""),
        ("gavel", "ac98ca1622a9"),
    ]
    assert EXAMPLE.is_complete()
    assert not replace(EXAMPLE, base_release=replace(NETWORKS, training_data=None)).is_complete()


def test_restricting_to_gpus_keeps_only_gpu_rows():
    of_gpus = EXAMPLE.restrict_to(["gpu"])
    assert not of_gpus.rows and not of_gpus.folders
    assert EXAMPLE.restrict_to(["processor"]).rows == EXAMPLE.rows


def test_training_data_is_part_of_the_release_and_its_id(make_release, tmp_path):
    one, again = (
        make_release(tmp_path / name, training_data=EXAMPLE.as_json()) for name in ("one", "again")
    )
    other = replace(EXAMPLE.rows[0], executions=9)
    changed = make_release(
        tmp_path / "other", training_data=replace(EXAMPLE, rows=(other,)).as_json()
    )

    assert one.release_id == again.release_id != changed.release_id
    assert read_training_data(load_release(one.folder).manifest, "one") == EXAMPLE


def test_the_id_covers_tables_but_not_their_folders(make_release, tmp_path):
    table = TableFile(12, "1" * 64)
    before = replace(NETWORKS, training_data=TrainingData(EXAMPLE.folders, ()))
    before_renamed = replace(NETWORKS, training_data=TrainingData((RENAMED,), ()))
    content = {
        "same": replace(EXAMPLE, base_release=before),
        "renamed": TrainingData((RENAMED,), EXAMPLE.rows, before),
        "renamed before": replace(EXAMPLE, base_release=before_renamed),
        "other table": TrainingData(
            (replace(RENAMED, tables={"jobs": table}),), EXAMPLE.rows, before
        ),
        "other start": replace(EXAMPLE, base_release=replace(before, release_id="0" * 12)),
    }
    ids = {
        name: make_release(tmp_path / name, training_data=one.as_json()).release_id
        for name, one in content.items()
    }

    assert ids["same"] == ids["renamed"] == ids["renamed before"]
    assert len({ids["same"], ids["other table"], ids["other start"]}) == 3


def test_a_release_of_the_previous_format_keeps_its_id_and_loads(make_release, tmp_path):
    """Its id covers names of folders; computed as in the current format, it would differ."""
    old = make_release(tmp_path / "old", training_data=EXAMPLE.as_json())
    manifest = {**old.manifest, "format": 5, "stranger_margins": {}}
    for predictor, by_novelty in manifest.pop("novelty_margins").items():
        manifest["stranger_margins"][predictor] = by_novelty.get("job", {})
    renamed = {**manifest, "learnt_from": replace(EXAMPLE, folders=(RENAMED,)).as_json()}
    assert content_id(manifest) != content_id(renamed)
    path = old.folder / MANIFEST

    path.write_text(json.dumps(manifest | {"release_id": content_id(manifest)}))
    assert load_release(old.folder).release_id == content_id(manifest)
    path.write_text(json.dumps(renamed | {"release_id": content_id(manifest)}))
    with pytest.raises(ReleaseError, match="does not match its release_id"):
        load_release(old.folder)


def test_releases_without_training_data_are_loaded(make_release, tmp_path):
    assert read_training_data(make_release(tmp_path / "old").manifest, "old") is None
    shipped = load_release(SHIPPED)
    # Whether or not the shipped one has been made again since.
    assert shipped.release_id == json.loads((SHIPPED / MANIFEST).read_text())["release_id"]
    read_training_data(shipped.manifest, "shipped")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rows": [{"campaign": "a"}]}, "KeyError"),
        ({"rows": {}}, "rows is not a list"),
        ({"folders": [{"folder": 1, "campaigns": [], "tables": {}}]}, "folder is not a text"),
        ({"rows": [AS_JSON["rows"][0] | {"executions": 1.5}]}, "not an integer"),
        ({"began_with": []}, "began_with is not an object"),
    ],
)
def test_a_malformed_manifest_is_a_one_line_error_that_names_the_field(change, match):
    with pytest.raises(ReleaseError, match=f"^version 3: learnt_from cannot be read .*{match}"):
        read_training_data({"learnt_from": AS_JSON | change}, "version 3")
