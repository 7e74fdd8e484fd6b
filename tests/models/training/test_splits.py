import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from presage.models.training.splits import (
    FOLDS,
    MANY_ROWS,
    family_folds,
    folds_by_split,
    job_folds,
)


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


def test_families_share_folds_in_a_large_table():
    families = [f"family {i % 30:02}" for i in range(MANY_ROWS)]
    rows = pd.DataFrame({"job_id": families, "family": families})
    small, large = (folds_by_split(part)["family"] for part in (rows[1:], rows))

    assert len(np.unique(small)) == 30
    assert large.tolist() == [i % 30 % FOLDS for i in range(MANY_ROWS)]
