"""``headrace plan``: predicted step time, idle shares and staleness, and how many generators balance one trainer."""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Literal

import msgspec
import numpy as np
from rich.table import Table

from bus import Bus
from headrace import config as configuration
from headrace.config import RunConfig
from headrace.folder import RunFolder, find_run
from headrace.inquiry import Place, ask
from headrace.plan import (
    BALANCED,
    Floats,
    Layout,
    Prediction,
    Rates,
    Recorded,
    Rollouts,
    Simulation,
    balance,
    decoding,
    distribution,
    pair,
    predict,
    recorded,
)
from schemas import ConfigError, check_name

from . import options, output

HELP = {"plan": "predicted step time, idle shares and staleness, from measured or given rates"}
SIMULATED_ROLLOUTS = 20_000
"""Enough for means within some per cent, in seconds."""
LEAST_STEPS = 20
"""Simulated however many rollouts a step has: fewer show nothing but the start."""
TOLD_EVERY_S = 2.0
OVERRIDES = {
    "step_overhead": "step_s", "commit": "commit_s", "fetch": "fetch_s", "pause": "pause_s",
    "closed_share": "closed_share",
}  # fmt: skip
"""Options that are a rate as it is."""
ROWS = {
    "step_s": ("step", "{:.3g} s"),
    "trainer_idle_share": ("trainer idle", "{:.1%}"),
    "generator_idle_share": ("generators idle", "{:.1%}"),
    "staleness_mean": ("staleness, mean", "{:.2f}"),
    "staleness_max": ("staleness, max", "{}"),
    "stale_share": ("left out as stale", "{:.1%}"),
    "tokens_per_s_trained": ("trained tokens/s", "{:,.0f}"),
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What ``headrace plan --json`` prints."""

    layout: Layout
    rates: Rates
    rollout_tokens_mean: float
    rollout_wait_s_mean: float
    closed_form: Prediction
    """What the run settles into."""
    simulated: Prediction
    """Of its first ``simulated_steps``."""
    simulated_steps: int
    bottleneck: Literal["trainer", "generators", "bound"]
    """``bound``: rollouts take too long for ``policy.max_off_policy_steps``, however many generators there are."""
    balanced_generators: int | None
    """Fewest with which the trainer waits at most 5 % of its time; null where no number is enough."""


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(
        parser,
        "headrace plan configs/demo.toml --from demo",
        "headrace plan configs/demo.toml --from demo --set generator.count=4 --set policy.max_off_policy_steps=4",
        "headrace plan big.toml --generator-rate 8000 --single-rate 90 --trainer-rate 20000 --rollout-tokens 900 "
        "--rollout-tokens-p99 8000",
    )
    options.add_config(parser)
    parser.add_argument("--from", dest="source", metavar="RUN", help="take the rates of this recorded run")
    options.add_dir(parser)
    options.add_server(parser)
    rates = parser.add_argument_group("rates", "instead of a run's, or on top of them")
    for option, unit, words in (
        ("--generator-rate", "TOKENS/S", "sampled by one generator with generator.concurrency rollouts in play"),
        ("--single-rate", "TOKENS/S", "sampled for one request alone (default: requests do not slow each other)"),
        ("--trainer-rate", "TOKENS/S", "trained, apart from what a step takes without any"),
        ("--step-overhead", "S", "what a step takes without any tokens"),
        ("--commit", "S", "from trained to announced weights; the trainer goes on meanwhile"),
        ("--fetch", "S", "from announced weights to the begin of a swap"),
        ("--pause", "S", "in which a swap keeps an engine from sampling"),
        ("--rollout-tokens", "TOKENS", "sampled in a rollout, the median"),
        ("--rollout-tokens-p99", "TOKENS", "the 99th percentile, of a log-normal distribution (default: all alike)"),
        ("--wait", "S", "for which a rollout's environment waits, the median"),
        ("--wait-p99", "S", "the 99th percentile (default: all alike)"),
        ("--closed-share", "SHARE", "of groups, those that teach nothing"),
    ):
        rates.add_argument(option, type=_number, metavar=unit, help=words)
    options.add_json(parser)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 0")
    return value


def run(arguments: argparse.Namespace) -> int:
    config = configuration.load(arguments.config, arguments.overrides)
    rates, rollouts = _given(arguments, config, _recorded(arguments))
    plan = _plan(Layout.of(config), rates, rollouts)
    if arguments.json:
        output.print_json(plan)
    else:
        _show(plan)
    return 0


def _recorded(arguments: argparse.Namespace) -> Recorded | None:
    if arguments.source is None:
        return None
    check_name(arguments.source, "run")
    if arguments.server:
        place = Place(arguments.source, RunFolder(arguments.dir / arguments.source), arguments.server)
    else:
        place = Place(arguments.source, find_run(arguments.source, arguments.dir))

    async def question(bus: Bus, goes_on: bool) -> Recorded:
        return await recorded(bus)

    return ask(place, question)


def _given(arguments: argparse.Namespace, config: RunConfig, run: Recorded | None) -> tuple[Rates, Rollouts]:
    """The run's rates, and on top of them those of the command line. Raises ConfigError where some are missing."""
    asked = {"--generator-rate": arguments.generator_rate, "--trainer-rate": arguments.trainer_rate,
             "--rollout-tokens": arguments.rollout_tokens}  # fmt: skip
    missing = [option for option, value in asked.items() if value is None]
    wrong = [option for option, value in asked.items() if value == 0]
    if run is None and missing:
        raise ConfigError(f"{', '.join(missing)} is missing: give it, or a recorded run with --from RUN")
    if wrong:
        raise ConfigError(f"{wrong[0]} is 0: give a number above 0")
    if arguments.single_rate is not None and arguments.generator_rate is None:
        raise ConfigError("--single-rate counts beside --generator-rate alone: give both")
    rates = Rates(token_s=0.0, request_s=0.0, train_token_s=0.0) if run is None else run.rates
    given = {field: value for option, field in OVERRIDES.items() if (value := getattr(arguments, option)) is not None}
    if given.get("closed_share", 0.0) >= 1:
        raise ConfigError("--closed-share is 1 or more: then nothing is ever trained")
    if arguments.trainer_rate is not None:
        given["train_token_s"] = 1 / arguments.trainer_rate
    if arguments.generator_rate is not None:
        given["token_s"], given["request_s"] = decoding(
            arguments.generator_rate, config.generator.concurrency, arguments.single_rate or None
        )
    return msgspec.structs.replace(rates, **given), _rollouts(arguments, config, run)


def _rollouts(arguments: argparse.Namespace, config: RunConfig, run: Recorded | None) -> Rollouts:
    """Those of the run, or of the distributions that are given; a 99th percentile alone goes with the run's median."""
    tokens_p99, wait_p99 = arguments.rollout_tokens_p99, arguments.wait_p99
    given = [arguments.rollout_tokens, tokens_p99, arguments.wait, wait_p99]
    if run is not None and all(value is None for value in given):
        return run.rollouts
    tokens = None if run is None else run.rollouts.tokens
    waits = None if run is None else run.rollouts.waits_s
    if arguments.rollout_tokens is not None or tokens_p99 is not None:
        median = _median("--rollout-tokens", arguments.rollout_tokens, tokens)
        tokens = distribution(median, tokens_p99, most=config.generator.max_model_len)
    if arguments.wait is not None or wait_p99 is not None:
        waits = distribution(_median("--wait", arguments.wait, waits), wait_p99)
    assert tokens is not None
    return pair(tokens, distribution(0.0, None) if waits is None else waits)


def _median(option: str, given: float | None, measured: Floats | None) -> float:
    """Raises ConfigError where the option is missing and nothing was measured."""
    if given is not None:
        return given
    if measured is None:
        raise ConfigError(f"{option}-p99 is given and {option}, the median, is missing: give it, or a run with --from")
    return float(np.median(measured))


def _plan(layout: Layout, rates: Rates, rollouts: Rollouts) -> Plan:
    closed_form = predict(layout, rates, rollouts)
    balanced = balance(layout, rates, rollouts)
    steps = max(LEAST_STEPS, SIMULATED_ROLLOUTS // (layout.groups_per_step * layout.group_size))
    simulated_steps = min(layout.steps, steps)
    told_at = time.monotonic()

    def tell(step: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= TOLD_EVERY_S:
            told_at = time.monotonic()
            print(f"simulated {step} of {simulated_steps} steps", file=sys.stderr)

    simulation = Simulation(layout, rates, rollouts)
    simulation.run(simulated_steps, tell)
    bottleneck: Literal["trainer", "generators", "bound"] = "generators"
    if closed_form.trainer_idle_share <= BALANCED:
        bottleneck = "trainer"
    elif balanced is None:
        bottleneck = "bound"
    return Plan(
        layout=layout,
        rates=rates,
        rollout_tokens_mean=rollouts.mean_tokens,
        rollout_wait_s_mean=float(rollouts.waits_s.mean()),
        closed_form=closed_form,
        simulated=simulation.prediction,
        simulated_steps=simulated_steps,
        bottleneck=bottleneck,
        balanced_generators=balanced,
    )


def _show(plan: Plan) -> None:
    table = Table("", "settled", f"first {plan.simulated_steps} steps", box=None, pad_edge=False)
    for field, (label, form) in ROWS.items():
        values = (form.format(getattr(prediction, field)) for prediction in (plan.closed_form, plan.simulated))
        table.add_row(label, *values)
    console = output.console()
    for line in _rate_lines(plan):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(table)
    console.print()
    console.print(_verdict(plan), soft_wrap=True)


def _rate_lines(plan: Plan) -> list[str]:
    layout, rates = plan.layout, plan.rates
    full = layout.places * layout.group_size
    sampled = full / (rates.token_s + full * rates.request_s)
    return [
        f"{layout.generators} x {layout.concurrency} rollouts, {layout.groups_per_step} groups of {layout.group_size} "
        f"a step, bound {layout.bound}, stale: {layout.stale}",
        f"generator  {sampled:,.0f} tokens/s with {full} rollouts in flight; a rollout has "
        f"{plan.rollout_tokens_mean:,.0f} tokens and waits {plan.rollout_wait_s_mean:.3g} s, in the mean",
        f"trainer    {1000 * rates.train_token_s:.3g} ms a token and {rates.step_s:.3g} s a step, commit "
        f"{rates.commit_s:.3g} s; weights: fetch {rates.fetch_s:.3g} s, pause {rates.pause_s:.3g} s",
    ]


def _verdict(plan: Plan) -> str:
    needed = plan.balanced_generators
    if plan.bottleneck == "bound":
        return (
            "the rollouts are the bottleneck: they take too long for so few steps in flight, and more generators alone "
            f"do not help: raise policy.max_off_policy_steps above {plan.layout.bound}"
        )
    noun = "generator is" if needed == 1 else "generators are"
    return f"the {plan.bottleneck} {'is' if plan.bottleneck == 'trainer' else 'are'} the bottleneck: {needed} {noun} " \
        "the fewest that keep one trainer busy"  # fmt: skip
