import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from presage.models.training.splits import FOLDS, family_folds, job_folds


def test_the_fold_of_a_job_never_changes():
    # Known answers: if these change, the gate's jury changes with them.
    assert job_folds(["resnet/w16-d8/b8/sgd", "mlp/w128-d2/b64/sgd", "x"]).tolist() == [0, 0, 1]


@given(st.lists(st.text(), min_size=1, unique=True), st.text())
def test_a_growing_campaign_moves_no_job(jobs, newcomer):
    assert job_folds([*jobs, newcomer])[:-1].tolist() == job_folds(jobs).tolist()


def test_folds_are_about_even():
    counts = np.bincount(job_folds([f"job {i}" for i in range(5000)]), minlength=FOLDS)

    assert counts.min() > 900


def test_every_family_is_a_fold_of_its_own():
    families = ["a", "b", "c", "d", "e", "f"] * 3
    folds = family_folds(families)

    assert folds.tolist() == [0, 1, 2, 3, 4, 5] * 3
