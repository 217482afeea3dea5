from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.groups import Assembly
from tests.examples import rollout


def arrive(assembly: Assembly, *members: tuple[int, int], start: int = 1) -> list[int]:
    """Numbers of the groups that were completed."""
    completed = []
    for sequence, (group, member) in enumerate(members, start):
        if (group_of := assembly.add(sequence, rollout(group=group, member=member))) is not None:
            completed.append(group_of.number)
    return completed


def test_a_group_is_complete_with_its_last_member() -> None:
    assembly = Assembly(2)
    assert arrive(assembly, (0, 1), (1, 0), (0, 0)) == [0]
    assert [group.number for group in assembly.complete()] == [0]


def test_the_first_in_log_order_counts() -> None:
    assembly = Assembly(2)
    arrive(assembly, (0, 0), (0, 0), (0, 1))
    (group,) = assembly.complete()
    assert [member.sequence for member in group.in_order()] == [1, 3]
    assert assembly.duplicates == 1


def test_a_duplicate_of_a_settled_group_stays_one_for_good() -> None:
    assembly = Assembly(2)
    arrive(assembly, (0, 0), (0, 1))
    assembly.settle(0)
    assert arrive(assembly, (0, 0), (0, 1), start=3) == []
    assert assembly.duplicates == 2
    assert assembly.complete() == []


def test_groups_that_the_ledger_settled_are_known_after_a_restart() -> None:
    assert arrive(Assembly(1, settled={4}), (4, 0)) == []


def test_what_an_earlier_trainer_took_is_no_duplicate_when_it_is_read_again() -> None:
    assembly = Assembly(2, settled={4})
    arrive(assembly, (4, 0), (4, 1))
    assert assembly.duplicates == 0
    arrive(assembly, (4, 1), start=3)
    assert assembly.duplicates == 1


def test_complete_groups_come_lowest_number_first() -> None:
    assembly = Assembly(1)
    arrive(assembly, (7, 0), (3, 0), (5, 0))
    assert [group.number for group in assembly.complete()] == [3, 5, 7]


@given(st.permutations([(group, member) for group in range(4) for member in range(3)]), st.sets(st.integers(0, 3)))
def test_the_low_water_mark_passes_nothing_unsettled(order: list[tuple[int, int]], settled: set[int]) -> None:
    assembly = Assembly(3)
    arrive(assembly, *order)
    expected = min((i for i, (group, _) in enumerate(order, 1) if group not in settled), default=13) - 1
    assert assembly.low_water(settling=settled) == expected
    for group in settled:
        assembly.settle(group)
    assert assembly.low_water() == expected


def test_the_mark_passes_a_message_that_cannot_be_used() -> None:
    assembly = Assembly(2)
    assembly.pass_by(9)
    assert assembly.low_water() == 9
