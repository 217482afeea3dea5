"""The files of the container set-up fit together and with the code, as far as can be seen without an engine."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

from bus.permissions import inbox_prefix

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "compose.yaml").read_text(encoding="utf-8")


def test_context_of_the_nats_box_is_the_operators() -> None:
    folder = ROOT / "deploy" / "nats-box" / "nats"
    assert (folder / "context.txt").read_text(encoding="utf-8") == "operator"
    context = json.loads((folder / "context" / "operator.json").read_text(encoding="utf-8"))
    assert context["inbox_prefix"] == inbox_prefix("operator")
    assert f"/operator:{Path(context['nkey']).parent}:ro" in COMPOSE
    assert context["url"] == "nats://nats:4222"


def test_every_variable_is_named_in_the_example_with_its_default() -> None:
    example = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    used = set(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE))
    assert {name for name, _ in used} == example.keys() - {"COMPOSE_PROJECT_NAME"}
    assert {(name, default) for name, default in used if default} <= set(example.items())


def test_only_what_the_image_is_built_from_goes_to_the_engine() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    for never in (".git", ".env", ".venv", "runs", "models", "deploy", "tests"):
        assert not any(fnmatch.fnmatch(never, pattern) for pattern in allowed)


def test_servers_read_the_configuration_of_a_container() -> None:
    cluster = (ROOT / "compose.cluster.yaml").read_text(encoding="utf-8")
    named = re.findall(r"--config\W+(/etc/nats/\S+\.conf)", COMPOSE + cluster)
    assert named == ["/etc/nats/container.conf"] * 4
    for file in ("nats.conf", "container.conf"):
        assert f"- ./deploy/{file}:/etc/nats/{file}:ro" in COMPOSE
