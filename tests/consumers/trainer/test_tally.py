"""What is counted of the prompts that requests had, of what was cut off, and of what was left out."""

import msgspec

from consumers.trainer.judgement import Rules
from consumers.trainer.tally import Tally, group_metrics, staleness_metrics
from schemas import MAX_METRICS, Span, Turn
from tests.examples import rollout, trained_group

TURNS = [Turn(5, 4, 0, "stop"), Turn(3, 2, 9, "stop"), Turn(8, 1, 4, "stop"), Turn(2, 1, 7, "stop")]


def tallied(**fields: object) -> dict[str, float]:
    tally = Tally()
    played = rollout(turns=TURNS, **fields)
    tally.trained(trained_group(sequences=[1, 2], rewards=[1.0, 0.0], advantages=[1.0, None], left_out={"1": "stale"}),
                  {1: played, 2: played})  # fmt: skip
    return tally.metrics()


def test_the_cached_share_of_prompts_is_told_by_turn() -> None:
    metrics = tallied()
    # The prompts of the four turns have 5, 12, 22 and 25 tokens.
    assert (metrics["prompt_tokens_turn_1"], metrics["cached_share_turn_1"]) == (10, 0)
    assert (metrics["prompt_tokens_turn_2"], metrics["cached_share_turn_2"]) == (24, 9 / 12)
    assert (metrics["prompt_tokens_turn_3_on"], metrics["cached_share_turn_3_on"]) == (94, 22 / 94)
    assert "prefix_breaks" not in metrics


def test_the_prompt_of_a_new_sequence_is_its_context_alone() -> None:
    metrics = tallied(starts=[2])
    # Turn 3 begins anew with 8 tokens, turn 4 has those, its reply and 2 more.
    assert metrics["prompt_tokens_turn_3_on"] == 2 * (8 + 11)
    assert metrics["prefix_breaks"] == 2


def test_named_metrics_are_as_many_as_an_event_holds_and_those_that_most_members_have() -> None:
    """Members that each bring names of their own would make a step's event larger than any message."""
    tally = Tally()
    members = {number: rollout(metrics={"win": 1.0, **{f"{number}-{i}": 0.0 for i in range(200)}}) for number in (1, 2)}
    tally.trained(trained_group(sequences=[1, 2], rewards=[1.0, 0.0], advantages=[1.0, -1.0], left_out={}), members)
    for names in (tally.env_metrics()["reverse"], group_metrics(list(members.values()))):
        assert len(names) == MAX_METRICS
        assert names["win"] == 1.0


def test_turns_that_nobody_had_are_left_out() -> None:
    assert Tally().metrics() == {"groups_closed": 0.0, "rewards": 0.0}


RULES = Rules(max_off_policy_steps=2, stale="drop", advantage="mean", row_tokens=8, too_long="cut")
PLAYED = {number: rollout(spans=[Span(5, 0, 6)], reward=float(number)) for number in (1, 2, 3)}
"""Of 14 tokens: 5 of context, 4 sampled, 3 of context, 2 sampled."""
GROUP = trained_group(
    sequences=[1, 2, 3], rewards=[1.0, 2.0, 3.0], advantages=[-1.0, 0.0, None], left_out={"2": "truncated"}
)


def test_sampled_tokens_that_are_cut_off_are_counted() -> None:
    metrics = staleness_metrics(6, [GROUP], PLAYED, RULES)
    assert metrics["cut_tokens"] == 2 * 3  # of the two members that are trained
    assert metrics["trained_tokens"] == 2 * 3
    assert metrics["rollouts_trained"] == 2


def test_where_nothing_is_ever_cut_there_is_nothing_to_count() -> None:
    rules = msgspec.structs.replace(RULES, row_tokens=32, too_long="drop")
    metrics = staleness_metrics(6, [GROUP], PLAYED, rules)
    assert "cut_tokens" not in metrics
    assert metrics["trained_tokens"] == 2 * 6


def test_truncated_members_are_counted_with_their_tokens() -> None:
    tally = Tally()
    tally.trained(GROUP, PLAYED)
    assert tally.left_out == {"truncated": 1}
    assert tally.left_out_tokens == {"truncated": 6}
    assert tally.metrics()["reward_mean"] == 2.0  # rewards are those of all members that have one
