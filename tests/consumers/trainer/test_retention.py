from __future__ import annotations

from consumers.trainer.retention import Cut, cut

LOW_WATERS = {1: 10, 2: 18, 3: 30, 4: 44}


def test_rollouts_after_the_oldest_checkpoint_stay() -> None:
    assert cut([0, 2, 4], LOW_WATERS, 0).rollouts_before == 19


def test_without_a_checkpoint_all_stays() -> None:
    assert cut([0], LOW_WATERS, 0) == Cut(rollouts_before=1, tasks_before=1)


def test_tasks_of_open_groups_stay_and_the_last_settled_one_as_the_cursor() -> None:
    # Group 12 is the 13th message of TASKS.
    assert cut([0, 4], LOW_WATERS, 12).tasks_before == 12
