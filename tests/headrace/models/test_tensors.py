"""Safetensors files as bytes, against the library that defines them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file

from headrace.models.tensors import write_tensors
from schemas.model import read_header

TENSORS = st.dictionaries(
    st.text("abc.", min_size=1, max_size=6),
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.int64]), arrays.array_shapes(max_dims=3, max_side=4, min_side=1),
        elements={"min_value": -100, "max_value": 100},
    ),
    max_size=5,
)  # fmt: skip


@given(TENSORS)
def test_what_is_written_is_what_was_read(tensors: dict[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        save_file(tensors, source)
        write_tensors(target, read_header(source))
        found = load_file(target)
    assert set(found) == set(tensors)
    for name, value in tensors.items():
        assert found[name].dtype == (np.float32 if value.dtype == np.float16 else value.dtype)
        assert np.array_equal(found[name], value)


def test_bytes_do_not_depend_on_order(tmp_path: Path) -> None:
    save_file({"a": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}, tmp_path / "x")
    header = read_header(tmp_path / "x")
    write_tensors(tmp_path / "one", header)
    write_tensors(tmp_path / "two", dict(reversed(header.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
