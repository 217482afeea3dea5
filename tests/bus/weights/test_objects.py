"""The layout of objects in a bucket."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.weights.objects import ObjectInfo, Options, cuts, digest_of, labels, meta_subject, object_info, sha256_in

INFO = ObjectInfo(
    name="a",
    options=Options(4),
    bucket="b",
    nuid="n1",
    size=9,
    chunks=3,
    digest=digest_of(hashlib.sha256().hexdigest()),
)


@given(st.integers(0, 10**12), st.integers(1, 10**9))
def test_chunks_lie_end_to_end_and_are_as_few_as_can_be(size: int, chunk: int) -> None:
    size %= 1000 * chunk
    found = cuts(size, chunk)
    assert [begin for begin, _ in found] == [end for _, end in [(0, 0), *found]][: len(found)]
    assert sum(end - begin for begin, end in found) == size
    assert all(0 < end - begin <= chunk for begin, end in found)
    assert len(found) == -(-size // chunk)


@given(st.binary(max_size=100))
def test_digest_is_as_other_clients_write_it_and_reads_back(payload: bytes) -> None:
    sha256 = hashlib.sha256(payload).hexdigest()
    assert digest_of(sha256).startswith("SHA-256=")
    assert "+" not in digest_of(sha256)
    assert sha256_in(digest_of(sha256)) == sha256


@pytest.mark.parametrize("digest", ["", "SHA-256=", "SHA-256=???", "MD5=" + "A" * 43 + "=", "SHA-256=AAAA"])
def test_what_is_no_sha256_is_none(digest: str) -> None:
    assert sha256_in(digest) == ""


def test_name_of_any_kind_is_one_token() -> None:
    assert meta_subject("b", "model/a b.c>*") == "$O.b.M.bW9kZWwvYSBiLmM-Kg=="


@given(st.frozensets(st.integers(0, 10**6)))
def test_versions_read_back(versions: frozenset[int]) -> None:
    metadata, description = labels(versions)
    assert msgspec.structs.replace(INFO, metadata=metadata, description=description).versions == versions


def test_metadata_reads_back() -> None:
    assert object_info(msgspec.json.encode(INFO), "b") == INFO


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": "other"}, {"nuid": ""}, {"nuid": "a.b"}, {"nuid": ">"}, {"size": -1}, {"chunks": -1},
        {"chunks": 10}, {"deleted": True},
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_true_is_passed_over(change: dict[str, object]) -> None:
    assert object_info(msgspec.json.encode(msgspec.structs.replace(INFO, **change)), "b") is None


@given(st.binary(max_size=200))
def test_any_bytes_are_metadata_or_none(payload: bytes) -> None:
    assert object_info(payload, "b") is None
