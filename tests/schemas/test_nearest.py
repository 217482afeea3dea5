"""The remedy in an error about a name."""

from __future__ import annotations

from schemas import nearest


def test_a_like_name_is_asked_for_and_nothing_where_none_is_like_it() -> None:
    assert nearest("grop", ["dapo", "grpo"]) == " (did you mean 'grpo'?)"
    assert nearest("xyzzy", ["dapo", "grpo"]) == nearest("grop", []) == ""
