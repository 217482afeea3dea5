"""Safetensors files as bytes, against the library that defines them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file

from headrace.models.tensors import read_header, write_tensors
from schemas import ModelError

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


def file_with(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "data", "problem"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234567", "bytes where its header says"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"123456789", "bytes where its header says"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234", "4 bytes for shape [2] of F32"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"", "entry of a is not valid"),
        ({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}, b"12345678", "entry of a is not valid"),
        ([], b"", "Expected `object`"),
    ],
)
def test_damaged_header_is_named(tmp_path: Path, header: object, data: bytes, problem: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_header(file_with(tmp_path / "x", header, data))
    assert problem in str(caught.value)
    assert "copy the model again" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, b"\xff" * 20, (5).to_bytes(8, "little") + b"{}"])
def test_what_is_no_such_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        read_header(tmp_path / "x")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path / "x")
