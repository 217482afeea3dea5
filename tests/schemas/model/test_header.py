"""The header of a safetensors file, as it should be and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from schemas import ModelError
from schemas.model import read_header


def test_tensors_are_found_where_they_lie(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.float16)}
    save_file(arrays, tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    for name, tensor in read_header(tmp_path / "x").items():
        assert (tensor.shape, tensor.items, tensor.size_bytes) == (
            arrays[name].shape, arrays[name].size, arrays[name].nbytes,
        )  # fmt: skip
        assert content[tensor.start : tensor.start + tensor.size_bytes] == arrays[name].tobytes()


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
    assert "copy it again" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, b"\xff" * 20, (5).to_bytes(8, "little") + b"{}"])
def test_what_is_no_such_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        read_header(tmp_path / "x")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path / "x")
