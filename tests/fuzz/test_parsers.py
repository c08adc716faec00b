"""Any bytes through the parsers of stored messages, records, conditions and names."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.effort import examples
from tests.fuzz.parsers import PARSERS, SEEDS


@st.composite
def near(draw, seeds):
    """Bytes that were valid before somebody changed a few of them."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes(name):
    """No parser fails, and what it returns has the promised types."""

    @examples(100, 20_000)
    @example(b"")
    @given(st.one_of(near(SEEDS[name]), st.binary(max_size=80), st.text(max_size=60).map(str.encode)))
    def search(data):
        PARSERS[name](data)

    for seed in SEEDS[name]:
        PARSERS[name](seed)
    search()
