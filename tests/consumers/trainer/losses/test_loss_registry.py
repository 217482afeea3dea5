"""Losses are found by name, a package's own among them, and what is wrong with one is said before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from consumers.trainer.losses import TokenLoss, Tokens, check_loss, load_loss, loss_names, registry
from consumers.trainer.settings import TrainerSettings
from schemas import ConfigError
from tests.consumers.trainer.losses.token_rows import tokens_of, values_and_gradient

SHARED = TrainerSettings().loss_settings
DOCS = Path(__file__).resolve().parents[4] / "docs" / "losses.md"
Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a function as the loss of a package."""
    installed: list[EntryPoint] = []

    def add(name: str, function: object, package: str = "theirs") -> None:
        module = ModuleType(package)
        module.loss = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, package, module)
        installed.append(EntryPoint(name, f"{package}:loss", registry.GROUP))

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in installed if point.group == group and name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return add


def halved(tokens: Tokens, *, clip_high: float, half: float = 0.5) -> TokenLoss:
    loss = -half * clip_high * tokens.advantages_N * tokens.logprobs_N
    return TokenLoss(loss, torch.zeros_like(tokens.documents_N, dtype=torch.bool))


def refused(name: str, args: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        check_loss(name, args or {}, SHARED)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["cispo", "dapo", "dppo", "dr_grpo", "grpo", "gspo", "ipo", "reinforce"])
def test_each_loss_of_ours_is_found_with_the_trainer_s_settings(name: str) -> None:
    assert name in loss_names()
    check_loss(name, {}, SHARED)
    tokens = tokens_of([(-1.0, -1.0, 1.0), (-2.0, -2.0, -0.5)], [0, 1])
    _, gradients = values_and_gradient(load_loss(name, {}, SHARED)(tokens), tokens)
    assert gradients == pytest.approx([-1.0, 0.5])  # on policy they are all the policy gradient


def test_a_setting_of_the_table_reaches_the_loss() -> None:
    tokens = tokens_of([(-1.0, -2.0, 1.0)])
    assert load_loss("grpo", {}, SHARED | {"clip_high": 0.5})(tokens).loss_N.item() == pytest.approx(-1.5)
    assert load_loss("grpo", {"clip_high": 0.75}, SHARED)(tokens).loss_N.item() == pytest.approx(-1.75)


def test_the_older_name_is_the_same_loss() -> None:
    tokens = tokens_of([(-1.0, -2.0, 1.0), (-2.0, -1.0, 3.0)])
    found, expected = (load_loss(name, {}, SHARED)(tokens) for name in ("reinforce", "cispo"))
    assert torch.equal(found.loss_N, expected.loss_N)


def test_a_loss_says_how_its_tokens_are_added_up() -> None:
    assert TrainerSettings().loss_aggregation == "token_mean"
    assert TrainerSettings(loss="gspo").loss_aggregation == "sequence_mean"
    assert TrainerSettings(loss="dr_grpo").loss_aggregation == "constant"
    assert TrainerSettings(loss="gspo", aggregation="token_mean").loss_aggregation == "token_mean"
    assert TrainerSettings(row_tokens=64).loss_constant == 64
    assert TrainerSettings(row_tokens=64, length_constant=10).loss_constant == 10


def test_an_unknown_loss_is_named_with_the_nearest() -> None:
    message = refused("dapoo")
    assert message.startswith("trainer.loss 'dapoo' is no loss (did you mean 'dapo'?): use one of cispo, dapo, dppo")
    assert "headrace.losses" in message


def test_a_package_s_loss_is_found(install: Install) -> None:
    install("halved", halved)
    assert "halved" in loss_names()
    check_loss("halved", {"half": 0.25}, SHARED)
    tokens = tokens_of([(-1.0, -1.0, 2.0)])
    assert load_loss("halved", {"half": 0.25}, SHARED)(tokens).loss_N.item() == pytest.approx(0.25 * 0.28 * 2.0)


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("halved", halved)
    install("halved", halved, package="others")
    assert refused("halved") == (
        "trainer.loss 'halved' is brought by others:loss and theirs:loss: uninstall one of the packages"
    )


def test_a_package_cannot_replace_a_loss_of_ours(install: Install) -> None:
    install("grpo", halved)
    assert "Headrace's own and also brought by theirs:loss" in refused("grpo")


def test_a_package_that_does_not_load_is_told(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("halved", halved)
    monkeypatch.delattr(sys.modules["theirs"], "loss")
    assert "cannot be imported from theirs:loss: AttributeError" in refused("halved")


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda *, clip_high: None, lambda tokens, clip_high: None, lambda tokens, **settings: None],
    ids=["nothing", "no tokens", "positional setting", "any setting"],
)
def test_a_wrong_signature_is_told(function: object, install: Install) -> None:
    install("wrong", function)
    assert "must take the tokens, then keyword-only settings" in refused("wrong")


def test_what_is_no_function_is_told(install: Install) -> None:
    install("wrong", 3)
    assert refused("wrong") == "trainer.loss 'wrong': theirs:loss is no function: name one"


def test_settings_of_a_loss_are_checked(install: Install) -> None:
    def needs(tokens: Tokens, *, strength: float) -> TokenLoss:
        return halved(tokens, clip_high=strength)

    install("needs", needs)
    assert refused("needs") == "trainer.loss 'needs' needs the setting 'strength': give it in trainer.loss_args"
    assert "has no such setting (did you mean 'strength'?): it takes strength" in refused("needs", {"strenght": 1.0})
    assert refused("needs", {"strength": "much"}).startswith("trainer.loss_args.strength = 'much': Expected `float`")
    assert "trainer.loss_args.beta: loss 'grpo' has no such setting" in refused("grpo", {"beta": 1.0})
    check_loss("needs", {"strength": 1.0}, SHARED)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda tokens: tokens.logprobs_N.sum(), "fails on three tokens: TypeError"),
        (lambda tokens: TokenLoss(tokens.logprobs_N.sum(), tokens.logprobs_N > 0), r"it gave torch.float32 \(\)"),
        (lambda tokens: TokenLoss(tokens.old_N, tokens.old_N > 0), "with a gradient"),
        (lambda tokens: TokenLoss(tokens.logprobs_N, tokens.old_N), "and bool"),
        (lambda tokens: 1 / 0, "fails on three tokens: ZeroDivisionError"),
    ],
    ids=["a sum", "one number", "no gradient", "no booleans", "a fault"],
)
def test_a_loss_that_gives_no_loss_is_told(answer: object, said: str, install: Install) -> None:
    install("wrong", answer)
    with pytest.raises(ConfigError, match=said):
        check_loss("wrong", {}, SHARED)


def test_the_loss_that_the_documentation_shows_works(install: Install) -> None:
    _, _, after = DOCS.read_text(encoding="utf-8").partition("```py\n")
    module: dict[str, Any] = {"__name__": "shown"}
    exec(compile(after.partition("```")[0], DOCS.name, "exec"), module)
    install("soft", module["soft"])
    check_loss("soft", {"temperature": 2.0}, SHARED)


def test_looking_at_a_loss_of_ours_does_not_load_torch() -> None:
    import subprocess

    program = (
        "import sys; from consumers.trainer import TrainerSettings, check_loss; s = TrainerSettings(loss='gspo'); "
        "check_loss(s.loss, s.loss_args, s.loss_settings); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=DOCS.parents[1])
