"""Configurations load, and bad ones are refused in one line that names the key and the remedy."""

from __future__ import annotations

import errno
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import config as configuration
from headrace.config import LATER, differences, digest, encoded, largest_rollout_bytes, load, store, stored
from schemas import ROLLOUTS, ConfigError, RunError, Span, Turn
from tests.examples import packed_logprobs, packed_tokens, rollout

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DEMO = CONFIGS / "demo.toml"
MINIMAL = """
[run]
name = "small"
steps = 3
[model]
path = "models/tiny"
[[environments]]
name = "reverse"
[trainer]
row_tokens = 1024
"""


def refused(*overrides: str, path: Path = DEMO) -> str:
    """The one line with which the configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(folder: Path, text: str, name: str = "small.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_configuration_loads(path: Path) -> None:
    config = load(path)
    assert config.run.name == path.stem
    assert config.trainer.row_tokens >= config.generator.max_model_len


def test_minimal_configuration_has_defaults_for_the_rest(tmp_path: Path) -> None:
    config = load(written(tmp_path, MINIMAL))
    assert config.policy.max_off_policy_steps == 2
    assert config.log.keep == "all"
    assert config.metrics.port == 0
    assert config.archive.enabled is False


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("trainer.lr=1e-5", "trainer.lr", 1e-5),
        ("trainer.lr=1", "trainer.lr", 1.0),
        ("run.seed = 7", "run.seed", 7),
        ("run.name=other", "run.name", "other"),
        ('run.name="quoted"', "run.name", "quoted"),
        ("run.name=2026-11-29", "run.name", "2026-11-29"),
        ("run.name=17", "run.name", "17"),
        ("policy.stale=mask", "policy.stale", "mask"),
        ("archive.enabled=true", "archive.enabled", True),
        ("trainer.betas=[0.8, 0.9]", "trainer.betas", (0.8, 0.9)),
        ("environments.0.weight=2.5", "environments.0.weight", 2.5),
        ("environments.0.args.length=7", "environments.0.args.length", 7),
        ("environments.0.args.word=abc", "environments.0.args.word", "abc"),
        ("supervisor.quick_deaths=9", "supervisor.quick_deaths", 9),
        ("model.path=a = b", "model.path", "a = b"),
        ("model.path=", "model.path", ""),
    ],
)
def test_override_sets_its_key(override: str, key: str, value: object) -> None:
    place: Any = load(DEMO, [override])
    for name in key.split("."):
        place = (
            place[int(name)] if name.isdecimal() else place[name] if isinstance(place, dict) else getattr(place, name)
        )
    assert place == value
    assert type(place) is type(value)


def test_later_override_wins() -> None:
    assert load(DEMO, ["run.steps=2", "run.steps=3"]).run.steps == 3


def test_override_with_a_line_break_sets_one_key_only() -> None:
    assert load(DEMO, ["model.path=a\nmake = 'tiny'"]).model.path == "a\nmake = 'tiny'"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.lrr=1", "--set: trainer.lrr is an unknown key: did you mean trainer.lr?"),
        ("run.lr=1", "--set: run.lr is an unknown key: did you mean trainer.lr?"),
        ("polcy.stale=mask", "--set: polcy is an unknown key: did you mean policy?"),
        ("environments.0.nmae=x", "--set: environments.0.nmae is an unknown key: did you mean environments.0.name?"),
        ("log.zzz=1", "--set: log.zzz is an unknown key: log has keep, max_gib, replicas, compression"),
    ],
)
def test_unknown_key_names_the_nearest(override: str, message: str) -> None:
    assert refused(override) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.steps=many", 'run.steps = "many": expected int, got str'),
        ("trainer.groups_per_step=0", "trainer.groups_per_step = 0: expected int >= 1; the default is 32"),
        ("policy.stale=keep", 'policy.stale = "keep": expected one of "drop", "mask"; the default is "drop"'),
        ("archive.enabled=1", "archive.enabled = 1: expected bool, got int; the default is false"),
        ("trainer.betas=[0.9]", "trainer.betas = [0.9]: expected list of length 2, got 1"),
        ("trainer.betas=[0.9, 2]", "trainer.betas.1 = 2: expected float < 1.0"),
        ("trainer.betas=[1.0, 0.9]", "trainer.betas.0 = 1.0: expected float < 1.0"),
        ("log.max_gib=1e12", "log.max_gib = 1000000000000.0: expected float <= 1048576.0; the default is 4.0"),
        ("weights.max_gib=1e12", "weights.max_gib = 1000000000000.0: expected float <= 1048576.0; the default is 8.0"),
        ("generator.metric_interval_s=6", "generator.metric_interval_s = 6: expected float <= 5.0; the default is 2.0"),
        ("generator=3", "generator = 3: expected table, got int"),
        ("trainer.lr=nan", "trainer.lr is nan: use a finite number"),
        ("run.steps=9223372036854775808", "run.steps is 9223372036854775808: use a number of at most"),
        ("metrics.port=70000", "metrics.port = 70000: expected int <= 65535"),
    ],
)
def test_wrong_value_names_key_value_and_expectation(override: str, message: str) -> None:
    assert refused(override).startswith(f"--set: {message}")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.row_tokens=32"], "trainer.row_tokens 32 is below generator.max_model_len 64"),
        (["generator.concurrency=4"], "generator.concurrency 4 is below trainer.group_size 8"),
        (["run.seed=-1"], "run.seed -1 is out of range"),
        (["trainer.micro_batch_tokens=64"], "trainer.micro_batch_tokens 64 is below trainer.row_tokens 128"),
        (["generator.max_model_len=2000000", "trainer.row_tokens=2000000", "trainer.micro_batch_tokens=2000000"],
         "generator.max_model_len 2000000 does not fit into one message"),
        (["environments=[{name='a'}, {name='a'}]"], "environments.name 'a' is used twice"),
        (["evaluation.environments=['reverse', 'sums', 'guess']"],
         "evaluation.environments names guess, sums: the run has reverse"),
        (["run.name=a.b"], "run.name 'a.b' cannot be used in a subject"),
        (["trainer.instance=a b"], "trainer.instance 'a b' cannot be used in a subject"),
        (["evaluation.generator=a b"], "evaluation.generator 'a b' cannot be used in a subject"),
        (["log.max_gib=0.001"],
         "log.max_gib 0.001 is too small: 768 rollouts can be open at once ((policy.max_off_policy_steps 2 + 1) * "
         "trainer.groups_per_step 32 * trainer.group_size 8), each of up to 2567 bytes (generator.max_model_len 64): "
         "set it to 0.01 at least, or lower one of them"),
    ],
)  # fmt: skip
def test_impossible_combination_is_refused(overrides: list[str], message: str) -> None:
    assert f": {message}" in refused(*overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.lr", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("trainer..lr=3", "is not KEY=VALUE"),
        ("environments.1.name=x", "'1' is none of its indices: use 0"),
        ("environments.first.name=x", "'first' is none of its indices"),
        ("trainer.lr.x=1", "trainer.lr is a value, not a table"),
        ("trainer.lr.x.y=1", "trainer.lr is a value, not a table"),
    ],
)
def test_malformed_override_is_refused(override: str, message: str) -> None:
    assert message in refused(override)


def test_fault_in_the_file_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, MINIMAL + "lrr = 1\n")
    assert refused(path=path) == f"{path}: trainer.lrr is an unknown key: did you mean trainer.lr?"
    assert refused("run.steps=5", path=path).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run\n", "is not TOML"),
        ("", "the table [run] is missing"),
        (MINIMAL.replace("steps = 3", ""), "run.steps is missing: add it, or give --set run.steps=VALUE"),
        (MINIMAL.replace("[[environments]]", "[other]"), "other is an unknown key"),
        (
            "environments = []\n" + MINIMAL.replace('[[environments]]\nname = "reverse"', ""),
            "no [[environments]] table",
        ),
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(path=written(tmp_path, text))


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in refused(path=path)


def test_folder_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in refused(path=tmp_path)


def test_missing_file_names_the_one_that_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(path=CONFIGS / "dmeo.toml").endswith(f"did you mean {DEMO}?")
    monkeypatch.chdir(CONFIGS.parent)
    assert refused(path=Path("demo")) == "there is no configuration demo: did you mean configs/demo.toml?"
    monkeypatch.chdir(tmp_path)
    assert refused(path=Path("zzz.toml")).startswith("there is no configuration zzz.toml: give the path")


def test_stored_configuration_comes_back_equal(tmp_path: Path) -> None:
    config = load(DEMO, ["environments.0.args.deep={a=[1, 2.0]}", "trainer.betas=[0.5, 0.6]"])
    path = store(config, tmp_path)
    assert stored(tmp_path) == config
    assert load(path) == config


def test_missing_or_damaged_stored_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        stored(tmp_path)
    written(tmp_path, "{", configuration.FILE_NAME)
    with pytest.raises(RunError, match="is damaged"):
        stored(tmp_path)


@pytest.mark.parametrize(
    "override",
    [
        "run.steps=9", "run.name=b", "generator.count=2", "generator.threads=2", "generator.concurrency=64",
        "trainer.activation_checkpointing=full", "trainer.threads=2", "trainer.checkpoint_every=3",
        "trainer.keep_checkpoints=4", "trainer.instance=b", "trainer.data_parallel=2", "trainer.tensor_parallel=2",
        "trainer.context_parallel=2",
        "metrics.port=9000", "archive.enabled=true", "log.keep=checkpoints", "weights.keep=3", "model.path=elsewhere",
        "weights.max_gib=2",
        "evaluation.held_out=0.5", "evaluation.tasks=3", "evaluation.environments=['reverse']",
        "supervisor.quick_deaths=9",
    ],
)  # fmt: skip
def test_what_does_not_decide_training_leaves_the_digest(override: str) -> None:
    assert digest(load(DEMO, [override])) == digest(load(DEMO))
    assert differences(load(DEMO), load(DEMO, [override])) == []


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("run.seed=1", "run.seed: 0 -> 1"),
        ("policy.stale=mask", 'policy.stale: "drop" -> "mask"'),
        ("policy.temperature=0.9", "policy.temperature: 1.0 -> 0.9"),
        ("environments.0.args.length=6", "environments.0.args.length: 5 -> 6"),
        ("trainer.lr=1e-3", "trainer.lr: 0.0005 -> 0.001"),
        ("trainer.groups_per_step=16", "trainer.groups_per_step: 32 -> 16"),
        ("trainer.micro_batch_tokens=2048", "trainer.micro_batch_tokens: 4096 -> 2048"),
        ("trainer.loss=reinforce", 'trainer.loss: "grpo" -> "reinforce"'),
        ("generator.max_model_len=32", "generator.max_model_len: 64 -> 32"),
        ("weights.dtype=bfloat16", 'weights.dtype: "float32" -> "bfloat16"'),
    ],
)
def test_what_decides_training_changes_the_digest(override: str, line: str) -> None:
    assert digest(load(DEMO, [override])) != digest(load(DEMO))
    assert differences(load(DEMO), load(DEMO, [override])) == [line]


def test_where_weights_lie_decides_nothing_of_what_is_trained_and_must_stay_all_the_same() -> None:
    moved = load(DEMO, ["weights.store=jetstream"])
    assert digest(moved) == digest(load(DEMO))
    assert differences(load(DEMO), moved) == ['weights.store: "file" -> "jetstream"']


def test_evaluation_decides_what_is_trained_by_what_it_holds_out_alone() -> None:
    on = load(DEMO, ["evaluation.every_steps=5"])
    assert differences(load(DEMO), on) == ["evaluation.environments: null -> []", "evaluation.held_out: null -> 0.1"]
    others = (
        "every_steps=7", "tasks=3", "samples=2", "temperature=0.5", "seed=1", "generator=1", "share=0.1",
        "pass_reward=0.5",
    )  # fmt: skip
    for other in others:
        changed = load(DEMO, ["evaluation.every_steps=5", f"evaluation.{other}"])
        assert differences(on, changed) == []
        assert digest(changed) == digest(on)
    more = load(DEMO, ["evaluation.every_steps=5", "evaluation.held_out=0.2"])
    assert differences(on, more) == ["evaluation.held_out: 0.1 -> 0.2"]
    assert digest(more) != digest(on)


def test_runs_from_before_a_key_existed_keep_their_digest() -> None:
    # That of the same file when [trainer] had none of the keys in LATER, as steps of such runs have recorded it.
    before = "4478d73e199012b8bcbcd4ddeaaded479dc356e892fe1ff2759c41a9bcbea55f"
    assert digest(load(DEMO)) == before
    defaults = json.loads(encoded(load(DEMO)))["trainer"]
    assert {key: defaults[key.removeprefix("trainer.")] for key in LATER} == LATER


@pytest.mark.parametrize(
    "override",
    [
        "trainer.aggregation=constant", "trainer.compile=true", "trainer.divergence_bound=0.3", "trainer.kl_coef=0.1",
        "trainer.length_constant=100", "trainer.loss_args.x=1", "trainer.lr_decay=cosine", "trainer.tis_cap=2.0",
        "trainer.too_long=cut", "trainer.truncated=mask",
    ],
)  # fmt: skip
def test_a_later_key_decides_what_is_trained_once_it_is_set(override: str) -> None:
    assert digest(load(DEMO, [override])) != digest(load(DEMO))
    assert differences(load(DEMO), load(DEMO, [override]))


def test_the_length_of_a_run_decides_what_is_trained_where_the_learning_rate_decays() -> None:
    decays = "trainer.lr_decay=linear"
    assert digest(load(DEMO, [decays, "run.steps=9"])) != digest(load(DEMO, [decays]))
    assert differences(load(DEMO, [decays]), load(DEMO, [decays, "run.steps=9"])) == [
        f"trainer.lr_decay to run.steps: {load(DEMO).run.steps} -> 9"
    ]


def test_rollouts_longer_than_a_row_are_possible_where_they_are_cut() -> None:
    assert load(DEMO, ["trainer.row_tokens=32", "trainer.too_long=cut"]).trainer.row_tokens == 32


def test_digest_is_the_same_after_storing(tmp_path: Path) -> None:
    store(load(DEMO), tmp_path)
    assert digest(stored(tmp_path)) == digest(load(DEMO))
    assert len(digest(load(DEMO))) == 64


@given(name=st.text(string.ascii_lowercase + "._-", min_size=1, max_size=20), value=st.text(max_size=20))
def test_any_override_loads_or_is_refused_in_one_line(name: str, value: str) -> None:
    message = ""
    try:
        load(DEMO, [f"{name}={value}"])
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message


def test_full_disk_leaves_the_configuration_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(load(DEMO), tmp_path)
    before = path.read_bytes()

    def half(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space left"):
        store(load(DEMO, ["run.steps=99"]), tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_log_holds_exactly_what_can_be_open() -> None:
    needed = 768 * largest_rollout_bytes(64) / 2**30
    assert load(DEMO, [f"log.max_gib={needed * 1.001}"]).log.max_gib > needed
    assert "is too small" in refused(f"log.max_gib={needed * 0.999}")


@pytest.mark.parametrize("tokens", [64, 4096, 32768])
async def test_no_rollout_takes_more_of_its_stream_than_is_reckoned(tokens: int, connect_as: Any) -> None:
    bus = await connect_as("generator")
    turn = tokens // 16
    await bus.publish(
        rollout(
            run=bus.run,
            env="e" * 64,
            generator="g" * 64,
            group=2**40,
            index=2**40,
            tokens=packed_tokens([2**31 - 1] * tokens),
            logprobs=packed_logprobs([-1.0] * (tokens - 16)),
            turns=[Turn(1, turn - 1, tokens, "length")] * 16,
            spans=[Span(2**30 + number, number, number + 1) for number in range(8)] + [Span(2**31 - 1, 8, tokens - 16)],
            metrics={f"metric {number}": 1 / 3 for number in range(8)},
        )
    )
    assert (await bus.state(ROLLOUTS)).bytes <= largest_rollout_bytes(tokens)
