import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presage.features.columns.schema import columns
from presage.features.device.device_class import DEVICE_CLASSES
from presage.features.graph.operator_buckets import OPERATOR_BUCKETS
from presage.features.job.job_description import PRECISIONS
from presage.features.job.job_table import precision_codes
from presage.models.calibration import training_domain
from presage.models.calibration.training_domain import (
    Domain,
    classify,
    contains,
    explain_out_of_domain,
    fit_domain,
    parse_domain,
)

NAMES = columns("full")
FORWARD, OTHER = "MatMul forward 0", "Relu forward"


def rows(*shares, **changed):
    """Return rows with these time shares of FORWARD and the rest in OTHER."""
    out = np.ones((len(shares), len(NAMES)))
    out[:, [NAMES.index(f"time_share.{cell}") for cell in OPERATOR_BUCKETS]] = 0
    out[:, NAMES.index("unknown_ops")] = 0
    out[:, NAMES.index(f"time_share.{FORWARD}")] = shares
    out[:, NAMES.index(f"time_share.{OTHER}")] = 1 - np.array(shares)
    for name, value in ({"compute_capability": 0} | changed).items():
        out[:, NAMES.index(name)] = value
    return out


@pytest.fixture
def domain() -> Domain:
    shares = np.linspace(0.3, 0.5, 21)
    return fit_domain(rows(*shares), [f"net {s}" for s in shares], ["fp32"] * 21)


def reason(domain, features, precision="fp32"):
    codes = precision_codes([precision])
    (found,) = domain.reasons(features, codes)
    assert domain.contains(features, codes).tolist() == [not found]
    return found


def test_a_job_similar_to_training_is_in_domain(domain):
    assert reason(domain, rows(0.402)) == ""


def test_different_time_shares_are_out_of_domain_with_a_reason(domain):
    assert reason(domain, rows(0.95)) == (
        "5 % of its step's time is in Relu forward, 50 % in that of the most similar job measured"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"precision": "fp16"}, "no job was measured in fp16"),
        ({"features": rows(0.4, unknown_ops=3)}, "3 operators are of no known kind"),
        (
            {"features": rows(0.4, batch_size=64)},
            "batch_size is 64, was 1 to 1 in training",
        ),
    ],
)
def test_other_reasons_to_be_out_of_domain(domain, changes, expected):
    assert reason(domain, **{"features": rows(0.4)} | changes) == expected


def test_a_domain_survives_a_round_trip(domain):
    again = parse_domain(json.loads(json.dumps(domain.as_json())))

    assert again == domain
    jobs = rows(0.1, 0.35, 0.7)
    assert again.reasons(jobs, precision_codes(["fp32"] * 3)) == domain.reasons(
        jobs, precision_codes(["fp32"] * 3)
    )


def test_a_single_model_covers_only_its_own_time_shares():
    domain = fit_domain(rows(0.4, 0.4), ["net", "net"], ["fp32"] * 2)

    assert domain.radius == 0
    assert reason(domain, rows(0.6)) != ""


def test_every_training_row_is_near_a_prototype():
    rng = np.random.default_rng(0)
    shares = rng.uniform(0, 1, 600)
    domain = fit_domain(rows(*shares), [str(s) for s in shares], ["fp32"] * 600)

    assert len(domain.mixtures) == 256
    strangers = [
        why for why in domain.reasons(rows(*shares), precision_codes(["fp32"] * 600)) if why
    ]
    assert len(strangers) < 60


@pytest.fixture
def by_class(domain) -> dict[str, Domain]:
    """Domains of processors, and of GPUs with jobs that are entirely in OTHER."""
    return {"processor": domain, "gpu": fit_domain(rows(0, 0), ["a", "b"], ["fp16"] * 2)}


JOBS = st.fixed_dictionaries(
    {
        "share": st.floats(0, 1),
        "precision": st.sampled_from(PRECISIONS),
        "compute_capability": st.sampled_from([0, 0, 7.5]),
        "unknown_ops": st.sampled_from([0, 0, 0, 2]),
        "batch_size": st.sampled_from([1, 1, 1, 1.002, 40]),
    }
)


@given(jobs=st.lists(JOBS, min_size=1, max_size=20), known=st.sets(st.sampled_from(DEVICE_CLASSES)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_is_in_domain_exactly_if_it_has_no_reason(by_class, jobs, known):
    domains = {name: by_class[name] for name in known}
    features = np.concatenate([features_of(**one) for one in jobs])
    precisions = precision_codes(one["precision"] for one in jobs)

    why = explain_out_of_domain(domains, features, precisions)
    in_domain = contains(domains, features, precisions)

    assert in_domain.tolist() == [not reason for reason in why]
    one_by_one = [contains(domains, features[[i]], precisions[[i]])[0] for i in range(len(jobs))]
    assert in_domain.tolist() == one_by_one


def features_of(share, precision, **changes):
    return rows(share, **changes)


def test_all_jobs_on_an_unmeasured_device_class_are_out_of_domain(domain):
    on_gpus = rows(0.4, 0.402, compute_capability=9)

    codes = precision_codes(["fp32"] * 2)
    assert (
        explain_out_of_domain({"processor": domain}, on_gpus, codes)
        == ["no job was measured on a gpu"] * 2
    )
    assert not contains({"processor": domain}, on_gpus, codes).any()


def test_rows_beyond_one_chunk_give_the_same_result(domain, monkeypatch):
    jobs = rows(*np.linspace(0, 1, 50))
    codes = precision_codes(["fp32"] * 50)
    at_once = domain.contains(jobs, codes)
    monkeypatch.setattr("presage.models.calibration.training_domain.ROWS_AT_ONCE", 7)

    assert 0 < at_once.sum() < 50
    assert np.array_equal(domain.contains(jobs, codes), at_once)


def test_a_job_between_the_radii_is_in_domain_and_not_near(domain):
    radii = replace(domain, radius=0.2, near_radius=0.02)
    # Trained on shares of 0.3 to 0.5: the distance of 0.54 is 0.028, that of 0.95 is 0.39.
    in_domain, near = radii.classify(rows(0.402, 0.54, 0.95), precision_codes(["fp32"] * 3))

    assert 0 < domain.near_radius <= domain.radius
    assert in_domain.tolist() == [True, True, False]
    assert near.tolist() == [True, False, False]


@given(jobs=st.lists(JOBS, min_size=1, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_job_near_training_is_in_domain(by_class, jobs):
    features = np.concatenate([features_of(**one) for one in jobs])
    precisions = precision_codes(one["precision"] for one in jobs)

    in_domain, near = classify(by_class, features, precisions)

    assert not (near & ~in_domain).any()
    assert np.array_equal(in_domain, contains(by_class, features, precisions))


def test_a_domain_of_an_older_version_has_one_radius(domain):
    content = domain.as_json()
    del content["near_radius"]
    older = parse_domain(content)
    features = rows(*np.linspace(0, 1, 50))

    assert older.near_radius == older.radius == domain.radius
    in_domain, near = older.classify(features, precision_codes(["fp32"] * 50))
    assert np.array_equal(in_domain, near)


@pytest.mark.parametrize("near_radius", [-0.1, 0.9, float("nan"), "0.1"])
def test_a_near_radius_that_is_no_number_up_to_the_radius_is_rejected(domain, near_radius):
    with pytest.raises(ValueError, match="radi"):
        parse_domain(domain.as_json() | {"radius": 0.5, "near_radius": near_radius})


def test_the_domain_of_a_large_table_is_that_of_evenly_spaced_rows(monkeypatch):
    shares = np.linspace(0, 1, 60)
    models, precisions = [f"m{i}" for i in range(60)], ["fp32"] * 60
    monkeypatch.setattr(training_domain, "TRAVERSED", 20)
    large = fit_domain(rows(*shares), models, precisions)
    known = {tuple(row) for row in large.mixtures.tolist()}

    assert len(known) == 20
    assert known == {
        tuple(row)
        for row in fit_domain(rows(*shares[::3]), models[::3], precisions[::3]).mixtures.tolist()
    }
    assert large.low.tolist() == fit_domain(rows(*shares), models, precisions).low.tolist()
