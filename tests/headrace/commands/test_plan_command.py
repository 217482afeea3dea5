from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.commands.plan import Plan
from headrace.folder import RunFolder
from tests.headrace.conftest import Headrace

pytestmark = pytest.mark.timeout(400)  # whoever is first waits for the run ``whole``
RATES = ("--generator-rate", "2000", "--trainer-rate", "5000", "--rollout-tokens", "20")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        '[run]\nname = "x"\nsteps = 12\n[model]\npath = "m"\n[[environments]]\nname = "reverse"\n'
        "[generator]\nconcurrency = 16\n[trainer]\ngroups_per_step = 4\ngroup_size = 4\n"
        "[policy]\nmax_off_policy_steps = 4\n"
    )
    return path


def test_plan_says_which_side_is_the_bottleneck(config: Path, headrace: Headrace) -> None:
    told = headrace("plan", config, *RATES)
    assert told.code == 0, told.err
    assert "the generators are the bottleneck: 3 generators are the fewest that keep one trainer busy" in told.out
    told = headrace("plan", config, *RATES, "--set", "generator.count=3")
    assert "the trainer is the bottleneck: 3 generators are the fewest" in told.out
    told = headrace("plan", config, *RATES, "--set", "policy.max_off_policy_steps=0")
    assert "raise policy.max_off_policy_steps above 0" in told.out


def test_plan_as_json_has_both_predictions(config: Path, headrace: Headrace) -> None:
    told = headrace("plan", config, *RATES, "--single-rate", "500", "--closed-share", "0.25", "--json")
    plan = msgspec.json.decode(told.out, type=Plan)
    assert plan.simulated_steps == 12
    assert plan.rates.closed_share == 0.25
    # 16 requests together have 2000 tokens/s, one alone 500.
    assert plan.rates.token_s + 16 * plan.rates.request_s == pytest.approx(16 / 2000)
    assert plan.rates.token_s + plan.rates.request_s == pytest.approx(1 / 500)
    assert plan.closed_form.step_s == pytest.approx(plan.simulated.step_s, rel=0.15)


def test_plan_takes_the_rates_of_a_run(whole: RunFolder, headrace: Headrace) -> None:
    told = headrace("plan", whole.path / "config.json", "--from", "whole", "--dir", whole.path.parent, "--json")
    assert told.code == 0, told.err
    plan = msgspec.json.decode(told.out, type=Plan)
    # Six steps give a line, which is flat where the larger ones happened to be quick.
    assert plan.rates.train_token_s + plan.rates.step_s > 0
    assert plan.rates.token_s + plan.rates.request_s > 0
    assert plan.simulated.staleness_max <= plan.layout.bound
    doubled = headrace(
        "plan", whole.path / "config.json", "--from", "whole", "--dir", whole.path.parent, "--trainer-rate", "1e9",
        "--json",
    )  # fmt: skip
    assert msgspec.json.decode(doubled.out, type=Plan).rates.train_token_s == 1e-9


def test_a_percentile_alone_goes_with_the_median_of_the_run(whole: RunFolder, headrace: Headrace) -> None:
    words = ("plan", whole.path / "config.json", "--from", "whole", "--dir", whole.path.parent, "--json")
    as_measured = msgspec.json.decode(headrace(*words).out, type=Plan)
    spread = msgspec.json.decode(headrace(*words, "--rollout-tokens-p99", "100").out, type=Plan)
    assert spread.rollout_tokens_mean > as_measured.rollout_tokens_mean
    told = headrace(*words, "--single-rate", "5")
    assert (told.code, told.err) == (
        1, "headrace plan: --single-rate counts beside --generator-rate alone: give both\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--generator-rate, --trainer-rate, --rollout-tokens is missing"),
        (RATES[:4], "--rollout-tokens is missing"),
        ((*RATES, "--single-rate", "10"), "one request alone cannot have 10 tokens/s where 16 together have 2000"),
        ((*RATES, "--rollout-tokens-p99", "10"), "a 99th percentile of 10 lies below the median 20"),
        ((*RATES, "--closed-share", "1"), "nothing is ever trained"),
        ((*RATES, "--trainer-rate", "0"), "--trainer-rate is 0"),
        ((*RATES[2:], "--generator-rate", "2000", "--wait-p99", "3"), "--wait, the median, is missing"),
        ((*RATES, "--wait", "0", "--wait-p99", "3"), "a 99th percentile of 3 does not go with a median of 0"),
        (("--from", "nobody"), "there is no run 'nobody'"),
    ],
)
def test_plan_names_what_is_wrong(config: Path, headrace: Headrace, options: tuple[str, ...], words: str) -> None:
    told = headrace("plan", config, "--dir", config.parent, *options)
    assert told.code == 1
    assert words in told.err


def test_a_number_that_is_none_is_a_wrong_command_line(config: Path, headrace: Headrace) -> None:
    with pytest.raises(SystemExit):
        headrace("plan", config, "--wait", "-1")
