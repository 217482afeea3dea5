from __future__ import annotations

import pytest
from rich.table import Table

from headrace.commands import output


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("[b]:x:[/b]")
    output.console().print("reply :x: and [red]", table)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["reply :x: and [red]", "[b]:x:[/b]"]
