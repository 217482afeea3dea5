"""The demo's model."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments import load_tokenizer
from headrace.models import Made, check_model, make_tiny
from headrace.models.characters import CHARACTERS
from schemas import EnvironmentFault, ModelError

pytestmark = pytest.mark.timeout(600)  # the warm-up takes a quarter of a minute where nothing else runs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


def test_model_begins_where_reinforcement_learning_can(tiny: Made) -> None:
    """It gets the reversed word about three times in ten: rewarded now and then, with much left to learn."""
    assert 0.2 <= tiny.likelihood["reverse"] <= 0.4
    assert tiny.likelihood["guess"] > 0.02  # of sampling one whole play exactly; blind guesses alone come to less
    assert tiny.steps < 120


def test_directory_is_one_that_a_run_starts_from(tiny: Made) -> None:
    summary = check_model(Path(tiny.path))
    assert (summary.architecture, summary.parameters, summary.dtype) == ("Qwen3ForCausalLM", 599_104, "float32")
    assert (summary.vocabulary, summary.tied) == (64, True)


def test_transformers_loads_the_same_model_and_tokenizer(tiny: Made) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny.path)
    assert sum(parameter.numel() for parameter in model.parameters()) == tiny.parameters
    theirs, ours = AutoTokenizer.from_pretrained(tiny.path), load_tokenizer(tiny.path)
    assert theirs(CHARACTERS).input_ids == ours.encode(CHARACTERS) == list(range(3, 3 + len(CHARACTERS)))
    assert theirs.eos_token_id == ours.end_id == model.generation_config.eos_token_id == 2
    assert ours.decode(ours.encode(CHARACTERS)) == theirs.decode(ours.encode(CHARACTERS)) == CHARACTERS
    assert len(theirs) == 64


def test_same_seed_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.models import warmup

    monkeypatch.setattr(warmup, "MAX_STEPS", 2)
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        make_tiny(tmp_path / name, seed=seed)
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other"))
    assert one == same
    assert one != other


def test_making_it_leaves_torch_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from headrace.models import warmup

    monkeypatch.setattr(warmup, "MAX_STEPS", 1)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    make_tiny(tmp_path / "tiny", environments=["guess"])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_what_cannot_be_made_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no environment 'chess'"):
        make_tiny(tmp_path / "tiny", environments=["chess"])
    with pytest.raises(ModelError, match="at least one, and each once"):
        make_tiny(tmp_path / "tiny", environments=[])
    (tmp_path / "tiny").write_text("in the way")
    with pytest.raises(ModelError, match="exists already"):
        make_tiny(tmp_path / "tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
