"""Shards and cursor: each sample of an epoch exactly once, whatever the sizes are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor, DataSet, check_batch, shard_bounds


@given(st.integers(0, 500), st.integers(1, 64))
def test_s2_shards_are_disjoint_complete_and_equal_to_within_one(count, shards):
    bounds = shard_bounds(count, shards)

    assert [i for start, end in bounds for i in range(start, end)] == list(range(count))
    sizes = [end - start for start, end in bounds]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    if count % shards == 0:
        assert set(sizes) == {count // shards}


@given(
    st.integers(1, 300), st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), min_size=1),
    st.integers(0, 2**32),
)  # fmt: skip
def test_s2_every_epoch_has_each_sample_once_however_often_sizes_change(samples, changes, seed):
    data_set, cursor = DataSet(samples, seed), Cursor()
    taken: dict[int, list[int]] = {}
    while cursor.epoch < 2:
        batch, workers = changes[cursor.step % len(changes)]
        indices = data_set.batch(cursor, batch)
        for start, end in shard_bounds(len(indices), workers):
            taken.setdefault(cursor.epoch, []).extend(indices[start:end].tolist())
        following = data_set.after(cursor, batch)
        assert following > cursor
        assert following.step == cursor.step + 1
        cursor = following

    for epoch in (0, 1):
        assert sorted(taken[epoch]) == list(range(samples))


def test_epochs_have_different_orders_and_the_seed_decides_them():
    one, other = DataSet(50, 1), DataSet(50, 2)

    assert one.order(0).tolist() == DataSet(50, 1).order(0).tolist()
    assert one.order(0).tolist() != one.order(1).tolist()
    assert one.order(1).tolist() != other.order(1).tolist()
    assert one.order(0).dtype == np.int64
    assert one.steps_per_epoch(20) == 3


def test_an_empty_data_set_and_a_small_batch_are_rejected():
    with pytest.raises(ElasticError, match="data set is empty"):
        DataSet(0, 0)
    with pytest.raises(ElasticError, match="batch=3 is less than 4 workers"):
        check_batch(3, 4)


def test_a_cursor_travels_as_json_and_is_not_negative():
    cursor = Cursor(7, 1, 12)

    assert Cursor.from_message(cursor.to_message()) == cursor
    with pytest.raises(ElasticError, match="negative"):
        Cursor(-1)
