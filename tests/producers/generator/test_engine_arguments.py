"""What vLLM is started with. Where it runs on GPUs, this is all that has been tried of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from producers.generator.settings import GeneratorSettings
from producers.generator.vllm_engine import _engine_arguments
from schemas import ConfigError


def arguments(settings: GeneratorSettings, *, on_cpu: bool) -> dict[str, Any]:
    return _engine_arguments(Path("model"), settings, "float32", 0, on_cpu)


def test_parallel_sizes_reach_the_engine() -> None:
    given = arguments(GeneratorSettings(tensor_parallel_size=4, data_parallel_size=2), on_cpu=False)
    assert (given["tensor_parallel_size"], given["data_parallel_size"]) == (4, 2)
    assert given["gpu_memory_utilization"] == 0.9


def test_copies_of_the_model_on_the_cpu_are_refused_with_what_to_do_instead() -> None:
    with pytest.raises(ConfigError, match=r"generator.data_parallel_size 2 is for GPUs.*generator.count"):
        arguments(GeneratorSettings(data_parallel_size=2), on_cpu=True)
