"""Size of a key-value cache, against the formula of the literature and as laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.job.kv_cache import KvCache

LLAMA_3_8B = {"layers": 32, "kv_heads": 8, "head_width": 128, "element_bytes": 2}
sizes = st.integers(1, 512)
caches = st.builds(KvCache, sizes, sizes, sizes, sizes, sizes, st.sampled_from([1, 2, 4]))


def test_a_token_of_llama_3_8b_takes_128_kib():
    assert KvCache(**LLAMA_3_8B, context=1, batch_size=1).token_bytes == 128 * 1024


def test_8192_tokens_of_llama_3_8b_take_1_gib():
    assert KvCache(**LLAMA_3_8B, context=8192, batch_size=1).size_bytes == 2**30


def test_as_many_sequences_fit_as_caches_into_the_free_memory():
    cache = KvCache(**LLAMA_3_8B, context=8192, batch_size=1)

    assert cache.max_batch_size(2**30) == 1
    assert cache.max_batch_size(2**30 - 1) == 0
    assert cache.max_batch_size(-1) == 0


@given(cache=caches, free_bytes=st.integers(0, 2**50))
def test_the_largest_batch_fits_and_one_more_sequence_does_not(cache, free_bytes):
    of_one = cache.size_bytes // cache.batch_size
    most = cache.max_batch_size(free_bytes)

    assert most * of_one <= free_bytes < (most + 1) * of_one


@pytest.mark.parametrize(
    "name", ["layers", "kv_heads", "head_width", "context", "batch_size", "element_bytes"]
)
def test_a_size_below_1_is_refused(name):
    with pytest.raises(ValueError, match=f"KV cache: {name}=0, must be >= 1"):
        KvCache(**(LLAMA_3_8B | {"context": 8, "batch_size": 8} | {name: 0}))
