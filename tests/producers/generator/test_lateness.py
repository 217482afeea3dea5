from __future__ import annotations

from producers import too_late


def test_a_rollout_is_too_late_when_no_later_step_can_train_its_oldest_token() -> None:
    # The next step updates weights 5, so a token of weights 3 has lag 2 in it.
    assert not too_late(3, version=5, bound=2)
    assert too_late(3, version=6, bound=2)


def test_a_rollout_without_a_token_is_never_too_late() -> None:
    assert not too_late(None, version=100, bound=0)
