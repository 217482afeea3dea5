from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from headrace.reference import (
    COMMON_HEADERS,
    DOCS,
    HEADERS,
    MARKER,
    PARTS,
    attribute_docs,
    configuration_page,
    events_page,
    pages,
    subject_pattern,
    type_text,
)
from schemas import EVENT_TYPES, Event, Rollout, Step, Turn, headers_of, subject_of
from schemas.settings import RunSettings
from tests import examples


@pytest.mark.parametrize("name", ["configuration.md", "events.md"])
def test_committed_page_is_that_of_the_code(name: str) -> None:
    path = DOCS / name
    committed = path.read_text(encoding="utf-8") if path.exists() else ""
    assert committed == pages()[name], (
        f"docs/{name} is not up to date: run `python -m headrace.reference` and commit it"
    )


def test_every_page_says_that_it_is_generated() -> None:
    assert all(page.startswith(MARKER) for page in pages().values())


@pytest.mark.parametrize("event", examples.every_event(), ids=lambda event: type(event).__name__)
def test_subject_on_the_page_is_that_of_the_codec(event: Event) -> None:
    pattern = subject_pattern(type(event))
    for name in ("run", "env", "role", "id", "stream"):
        pattern = pattern.replace(f"<{name}>", str(getattr(event, name, "")))
    assert pattern == subject_of(event)


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_headers_on_the_page_are_those_of_the_codec(kind: type[Event]) -> None:
    events = [*examples.every_event(), examples.failed_rollout(), examples.failed_evaluated()]
    published = [headers_of(event, source="sink/x") for event in events if type(event) is kind]
    assert set().union(*published) == {*COMMON_HEADERS, *HEADERS.get(kind, ())}


@pytest.mark.parametrize("kind", [*EVENT_TYPES, *PARTS], ids=lambda kind: kind.__name__)
def test_every_field_of_an_event_has_a_meaning(kind: type[msgspec.Struct]) -> None:
    assert set(kind.__struct_fields__) <= set(attribute_docs(kind))


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    rows = [line for line in configuration_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_struct_that_stands_in_an_event_is_described() -> None:
    page = events_page()
    for kind in (*EVENT_TYPES, *PARTS):
        assert f"# {kind.__name__}\n" in page
    links = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert links <= {kind.__name__.lower() for kind in (*EVENT_TYPES, *PARTS)}


def test_docstrings_are_read_from_the_source_with_inherited_ones() -> None:
    assert attribute_docs(Rollout)["run"] == "Name of the run."
    assert attribute_docs(Turn)["finish"] == "Whether the reply ended by itself or met its token limit."
    assert attribute_docs(Step)["packing"].startswith("Micro-batches of rows of positions")
    assert attribute_docs(RunSettings)["steps"] == "Optimizer steps until the run is finished."


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "int"),
        (Annotated[int, msgspec.Meta(ge=2, le=4096)], "int >= 2, <= 4096"),
        (Annotated[str, msgspec.Meta(min_length=1, max_length=128)], "str of 1 to 128 characters"),
        (Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")], "sha256 in hexadecimal"),
        (list[float | None], "list of (float or null)"),
        (dict[str, dict[str, float]], "table of table of float"),
        (dict[str, Any], "table of any value"),
        (Literal["drop", "mask"], '"drop" or "mask"'),
        (tuple[float, float], "2 values: float, float"),
        (list[Turn], "list of [Turn](#turn)"),
    ],
)
def test_types_are_written_for_readers(kind: Any, text: str) -> None:
    assert type_text(kind) == text
