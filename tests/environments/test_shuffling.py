"""A shuffle without a list: a permutation for each key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from environments.shuffling import shuffled


@given(size=st.integers(1, 300), key=st.text(max_size=5))
def test_each_thing_stands_at_one_place(size: int, key: str) -> None:
    assert sorted(shuffled(place, size, key) for place in range(size)) == list(range(size))


@given(size=st.integers(1, 2**40), data=st.data())
def test_large_sizes_stay_within(size: int, data: st.DataObject) -> None:
    assert 0 <= shuffled(data.draw(st.integers(0, size - 1)), size, "key") < size


def test_orders_of_different_keys_differ() -> None:
    orders = {tuple(shuffled(place, 50, f"{key}") for place in range(50)) for key in range(20)}
    assert len(orders) == 20


def test_no_place_is_preferred() -> None:
    first = [shuffled(0, 4, f"{key}") for key in range(4000)]
    assert all(800 < first.count(thing) < 1200 for thing in range(4))
