from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bus import Bus, EmbeddedServer
from consumers.sinks import run_archive
from consumers.sinks.archive import SCHEMA, Archive, Row, resumes_at, table
from schemas import Failure, Rollout, Span, Turn, encode
from tests import examples
from tests.logs import TIME, logged, unreadable
from tests.raw_publisher import publish_raw


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def filled(folder: Path, first: int, last: int, **options: int) -> Archive:
    archive = Archive(folder, **options)
    for sequence in range(first, last + 1):
        archive.add(logged(examples.rollout(group=sequence), sequence=sequence))
    return archive


def test_row_has_all_of_a_rollout() -> None:
    [row] = table([Row(31, TIME, examples.rollout())]).to_pylist(maps_as_pydicts="strict")
    assert row == {
        "sequence": 31,
        "published_at": TIME,
        "run": "demo",
        "group": 12,
        "member": 3,
        "env": "reverse",
        "task_index": 12,
        "generator": "gen-0",
        "attempt": 1,
        "tokens": list(range(10, 24)),
        "loss_mask": [False] * 5 + [True] * 4 + [False] * 3 + [True] * 2,
        "logprobs": [-0.5, -0.25, -1.0, -0.125, -2.0, -0.0625],
        "versions": [4, 4, 5, 5, 5, 5],
        "turn_lengths": [5, 4, 3, 2],
        "starts": [],
        "cached": [0, 9],
        "reward": 0.8,
        "error_kind": None,
        "error_message": None,
        "metrics": {"exact": 0.0, "turns": 2.0},
        "swaps_during": 1,
        "started_at": 1_796_000_000.0,
        "total_s": 1.5,
        "sampling_s": 1.25,
    }


def test_every_field_of_a_rollout_is_kept_under_some_name() -> None:
    renamed = {
        "index": "task_index",
        "turns": "turn_lengths",
        "spans": "versions",
        "error": "error_kind",
        "timings": "total_s",
    }
    assert {renamed.get(field, field) for field in Rollout.__struct_fields__} <= set(SCHEMA.names)


def test_failed_rollout_has_empty_lists_and_its_error() -> None:
    failed = examples.failed_rollout(error=Failure(kind="timeout", message="300 s"))
    rows = table([Row(1, TIME, failed), Row(2, TIME, examples.rollout()), Row(3, TIME, failed)]).to_pylist()
    for row in (rows[0], rows[2]):
        assert row["tokens"] == row["logprobs"] == row["versions"] == row["loss_mask"] == []
        assert (row["reward"], row["error_kind"], row["error_message"]) == (None, "timeout", "300 s")
    assert rows[1]["tokens"] == list(range(10, 24))


def test_file_is_named_by_the_sequences_that_it_covers(tmp_path: Path) -> None:
    path = filled(tmp_path, 1, 3).flush()
    assert path == tmp_path / "rollouts-00000001-00000003.parquet"
    assert pq.read_table(path).column("sequence").to_pylist() == [1, 2, 3]
    assert pq.read_table(path).schema == SCHEMA


def test_archive_is_full_at_its_number_of_rows(tmp_path: Path) -> None:
    archive = filled(tmp_path, 1, 2, rows_per_file=3)
    assert not archive.full
    archive.add(logged(examples.rollout(), sequence=3))
    assert archive.full
    archive.flush()
    assert not archive.full
    assert archive.next_sequence == 4


def test_restart_goes_on_after_the_last_whole_file(tmp_path: Path) -> None:
    filled(tmp_path, 1, 3).flush()
    filled(tmp_path, 4, 5)  # killed before it wrote
    archive = Archive(tmp_path)
    assert archive.next_sequence == 4
    for sequence in range(4, 7):
        archive.add(logged(examples.rollout(group=sequence), sequence=sequence))
    archive.flush()
    assert names(tmp_path) == ["rollouts-00000001-00000003.parquet", "rollouts-00000004-00000006.parquet"]
    assert pq.read_table(tmp_path).column("group").to_pylist() == [1, 2, 3, 4, 5, 6]


def test_file_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "rollouts-00000001-00000009.parquet.part").write_bytes(b"PAR1")
    archive = Archive(tmp_path)
    assert archive.next_sequence == 1
    assert names(tmp_path) == []


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "rollouts-1-2.parquet").write_bytes(b"")
    assert Archive(tmp_path).next_sequence == 1
    assert names(tmp_path) == ["notes.txt", "rollouts-1-2.parquet"]


def test_sequences_beyond_eight_digits_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "rollouts-99999999-123456789.parquet").touch()
    assert resumes_at(tmp_path) == 123_456_790


def test_message_that_is_no_rollout_is_covered_but_has_no_row(tmp_path: Path) -> None:
    archive = filled(tmp_path, 1, 2)
    archive.add(unreadable(sequence=3))
    path = archive.flush()
    assert path == tmp_path / "rollouts-00000001-00000003.parquet"
    assert pq.read_table(path).num_rows == 2


def test_nothing_new_writes_no_file(tmp_path: Path) -> None:
    archive = filled(tmp_path, 1, 2)
    assert archive.flush() is not None
    assert archive.flush() is None
    archive.add(unreadable(sequence=3))
    assert archive.flush() is None
    assert names(tmp_path) == ["rollouts-00000001-00000002.parquet"]


def test_failed_write_leaves_no_file_that_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    archive = filled(tmp_path, 1, 2)
    monkeypatch.setattr(pq, "write_table", disk_full)
    with pytest.raises(OSError, match="No space left"):
        archive.flush()
    assert resumes_at(tmp_path) == 1
    monkeypatch.undo()
    assert archive.flush() == tmp_path / "rollouts-00000001-00000002.parquet"


def test_the_greatest_figures_of_a_valid_rollout_fit_into_their_columns(tmp_path: Path) -> None:
    extreme = examples.rollout(
        group=2**53,
        member=4095,
        index=2**53,
        attempt=2**31 - 1,
        swaps_during=2**31 - 1,
        turns=[Turn(8, 6, 2**31 - 1, "stop")],
        spans=[Span(2**31 - 1, 0, 6)],
        reward=-1e6,
        metrics={"m" * 128: 1e12},
    )
    archive = Archive(tmp_path)
    archive.add(logged(extreme, sequence=2**53))
    path = archive.flush()
    (row,) = pq.read_table(path).to_pylist()
    assert (row["group"], row["cached"], row["versions"][0]) == (2**53, [2**31 - 1], 2**31 - 1)


async def test_poison_among_rollouts_stops_no_archive(
    server: EmbeddedServer, writer: Bus, sink: Bus, tmp_path: Path
) -> None:
    stop = asyncio.Event()
    stop.set()
    address, subject = server.address("admin"), f"hr.{writer.run}.rollout.reverse"
    await writer.publish(examples.rollout(run=writer.run, group=0))
    for payload in (b"", b"noise", encode(examples.rollout(run="other")), encode(examples.term(run=writer.run))):
        await publish_raw(address, subject, payload, b"Status: 404\r\nhr-group: \xff\r\n")
    await writer.publish(examples.rollout(run=writer.run, group=1))
    await run_archive(sink, tmp_path / "archive", stop)
    assert names(tmp_path / "archive") == ["rollouts-00000001-00000006.parquet"]
    assert pq.read_table(tmp_path / "archive").column("group").to_pylist() == [0, 1]


async def test_stopped_archive_has_the_whole_log_and_a_restart_adds_to_it(
    writer: Bus, sink: Bus, tmp_path: Path
) -> None:
    stop = asyncio.Event()
    stop.set()
    for group in range(3):
        await writer.publish(examples.rollout(run=writer.run, group=group))
    await run_archive(sink, tmp_path / "archive", stop)
    for group in range(3, 5):
        await writer.publish(examples.rollout(run=writer.run, group=group))
    await run_archive(sink, tmp_path / "archive", stop)
    assert names(tmp_path / "archive") == ["rollouts-00000001-00000003.parquet", "rollouts-00000004-00000005.parquet"]
    assert pq.read_table(tmp_path / "archive").column("group").to_pylist() == [0, 1, 2, 3, 4]
