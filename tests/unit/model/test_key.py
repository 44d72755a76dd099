"""The sum over keys: of an imported file it is known without making them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.messages.key import CHECKSUM_MASK, checksum, checksum_of_rows, make_key

_U48 = st.integers(0, 2**48 - 1)


@given(st.lists(_U48, max_size=6), _U48, st.integers(0, 2**31 - 7), st.integers(0, 6))
def test_the_sum_over_the_rows_of_a_file(dues: list[int], offset: int, first: int, cut: int) -> None:
    keys = [make_key(due, offset, first + at) for at, due in enumerate(dues)]
    array = np.array(dues, np.int64)
    assert checksum_of_rows(array, offset, first) == checksum(keys)
    parts = checksum_of_rows(array[:cut], offset, first) + checksum_of_rows(array[cut:], offset, first + cut)
    assert parts & CHECKSUM_MASK == checksum(keys)
    assert array.tolist() == dues
