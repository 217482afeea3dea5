"""A run on a mix of environments of every origin trains.

Tasks of reasoning-gym, questions of a file, and two tasksets of verifiers, one of which has a tool. The model is a
random one with a token for each byte and a chat template. A short warm-up teaches it to answer with a number, which is
right often enough for groups whose members differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

from environments import load_environment, load_tokenizer
from headrace.models import tiny, warmup
from schemas import EnvironmentSettings
from tests.end_to_end.conftest import ROOT
from tests.end_to_end.logbook import check, read_logbook
from tests.extras import needs

pytestmark = [pytest.mark.timeout(400), needs("reasoning_gym"), needs("verifiers")]

TASKSETS = ROOT / "tests" / "environments" / "verifiers_tasksets"

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GCD = {"task": "gcd", "tags": False, "params": {"max_value": 9}, "max_tokens": 4}
FILE = {"path": "configs/data/arithmetic.jsonl", "template": "{question}", "score": "numeric", "max_tokens": 4}
SHOWN = {
    "gcd": EnvironmentSettings(name="gcd", kind="reasoning_gym", args=GCD),
    "file": EnvironmentSettings(name="file", kind="jsonl", weight=0.5, args=FILE),
}
ECHO = {"id": "vf-echo", "args": {"words": ["1", "2", "3"]}, "max_tokens": 4}
CALCULATOR = {"id": "vf-calculator", "args": {"task": {"shared": True}}, "max_tokens": 4}
MIX = SHOWN | {
    "echo": EnvironmentSettings(name="echo", kind="verifiers", args=ECHO),
    "calculator": EnvironmentSettings(name="calculator", kind="verifiers", weight=0.5, args=CALCULATOR),
}
CONFIG = """
[run]
name = "mixed"
steps = 5

[generator]
engine = "tests.stand_in.engine:StandInEngine"
concurrency = 24
max_model_len = 256
kv_cache_gib = 0.5

[trainer]
groups_per_step = 6
group_size = 6
row_tokens = 256
checkpoint_every = 5
"""


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes") / "model"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in (START, END)])
    tokenizer.save(str(folder / "tokenizer.json"))
    end_id = tokenizer.token_to_id(END)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end_id}))
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": end_id, "pad_token_id": None}
    model = Qwen3ForCausalLM(Qwen3Config(**{**tiny.CONFIG, **sizes, "num_hidden_layers": 2}))  # type: ignore[no-untyped-call]
    played = {name: load_environment(settings, seed=99) for name, settings in SHOWN.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warmup, "BATCH", 24)
        warmup.warm_up(model, load_tokenizer(folder), played, seed=0, report=print)
    model.config.save_pretrained(folder)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_run_on_a_mix_trains_every_environment(bytes_model: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    environments = "".join(
        f'[[environments]]\nname = "{each.name}"\nkind = "{each.kind}"\nweight = {each.weight}\n'
        f"args = {_inline(each.args)}\n"
        for each in MIX.values()
    )
    config.write_text(f'{CONFIG}\n[model]\npath = "{bytes_model}"\n{environments}')
    command = [sys.executable, "-m", "headrace", "up", str(config), "--dir", str(tmp_path), "--json"]
    env = os.environ | {"PYTHONPATH": str(TASKSETS)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    book = read_logbook(tmp_path / "mixed")
    check(book)
    trained = Counter(group.env for step in book.steps for group in step.groups)
    assert len(book.steps) == 5
    # Nothing has shown the model how the calculator is called: its groups are scored, and may be all alike.
    assert {*SHOWN, "echo"} <= set(trained)
    scored = Counter(rollout.env for rollout in book.rollouts.values() if rollout.reward is not None)
    assert set(scored) == set(MIX)
    assert not [rollout for rollout in book.rollouts.values() if rollout.error and rollout.error.kind != "stale"]


def _inline(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)
