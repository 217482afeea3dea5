"""One suite for the stand-in and for vLLM: what a generator may expect of its engine.

Each engine starts once; tests share it and swap to the weights they need. Log-probabilities are compared with a
forward pass of transformers over the same weights.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from environments import Sample
from producers.generator.engine import Aborted, Engine, SamplingRequest
from producers.generator.settings import GeneratorSettings
from producers.generator.vllm_engine import VllmEngine
from schemas import EngineError, PolicySettings, WeightsError
from tests.stand_in.engine import StandInEngine
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLACES = 4
BLOCK = 32
VOCABULARY = 64
TOLERANCE = 1e-3
"""Of a log-probability: kernels add up in different orders."""
_ids = itertools.count()
