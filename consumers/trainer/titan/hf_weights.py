"""A model's weights in and out under Hugging Face's names, one tensor at a time.

A model that is sharded may be larger than any one rank's memory: no rank has more than a tensor of it whole, but for
what its caller keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

from schemas import ModelError, WeightsError
from schemas.model import Architecture, own_tensors

from . import device  # noqa: F401

# isort: split
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.llama3 import Llama3StateDictAdapter
from torchtitan.models.qwen3 import Qwen3StateDictAdapter

from .weights_file import StoredWeights

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class _Place(NamedTuple):
    """Where a tensor of the model lies."""

    shape: torch.Size
    """Of the whole tensor."""
    device: torch.device
    sharding: tuple[DeviceMesh, tuple[Placement, ...]] | None
    """None where it is not sharded."""

    @classmethod
    def of(cls, value: torch.Tensor) -> _Place:
        sharding = (value.device_mesh, value.placements) if isinstance(value, DTensor) else None
        return cls(value.shape, value.device, sharding)

    def put(self, value: torch.Tensor) -> torch.Tensor:
        """The part of this rank of the whole ``value``, which every rank has."""
        if self.sharding is None:
            return value
        mesh, placements = self.sharding
        return distribute_tensor(value.to(self.device), mesh, placements, src_data_rank=None)


def adapter(config: Any, architecture: Architecture) -> Any:
    """The translation between torchtitan's names and shapes and Hugging Face's."""
    kind = Qwen3StateDictAdapter if architecture.qwen else Llama3StateDictAdapter
    return kind(config, None)


def hf_weights(model: Decoder, adapter: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Each whole tensor with Hugging Face's name, in the parameters' type. All ranks must take all of them together."""
    for part in _parts(model):
        for name, value in part.items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            yield from adapter.to_hf({name: whole.detach()}).items()


def load_hf_weights(model: Decoder, adapter: Any, weights: StoredWeights, *, source: str) -> None:
    """Copy whole tensors under Hugging Face's names into the model; each rank takes its shard.

    Raises WeightsError, naming ``source``, where names or shapes are not the model's; nothing is copied then.
    """
    parts = [{name: _Place.of(value) for name, value in part.items()} for part in _parts(model)]
    expected = {name: _hf_shapes(adapter, name, place.shape) for part in parts for name, place in part.items()}
    shapes = {name: shape for found in expected.values() for name, shape in found.items()}
    try:
        own_tensors(shapes, weights.shapes, source=source)
    except ModelError as error:
        raise WeightsError(str(error)) from None
    places = {name: place for part in parts for name, place in part.items()}
    for part in parts:
        own: dict[str, torch.Tensor] = {}
        for name in part:
            read = {hf_name: weights.read(hf_name).float() for hf_name in expected[name]}
            own |= {each: places[each].put(value) for each, value in _from_hf(adapter, read).items()}
        # Not strict, because it is a part, and fused projections are translated on the way in.
        model.load_state_dict(own, strict=False)


def _parts(model: Decoder) -> Iterator[dict[str, torch.Tensor]]:
    """The model's state, layer after layer. Asked for the whole, torchtitan would gather all fused projections."""
    for name, child in model.named_children():
        layers = child.named_children() if isinstance(child, nn.ModuleDict) else [("", child)]
        for number, module in layers:
            yield module.state_dict(prefix=f"{name}.{number}." if number else f"{name}.")


def _hf_shapes(adapter: Any, name: str, shape: torch.Size) -> dict[str, tuple[int, ...]]:
    """Of what torchtitan's tensor ``name`` is made of; nothing for what is no weight, and for a head that is tied."""
    with torch.device("meta"):
        return {each: tuple(value.shape) for each, value in adapter.to_hf({name: torch.empty(shape)}).items()}


def _from_hf(adapter: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that torchtitan makes of these, which must be all that they take."""
    if not weights:
        return {}
    if EMBEDDING in weights or not adapter.model_config.enable_weight_tying:
        found: dict[str, torch.Tensor] = adapter.from_hf(weights)
        return found
    # Of a tied model the adapter asks for the embedding each time, unless there is a head.
    found = adapter.from_hf(weights | {HEAD: torch.empty(0)})
    return {name: value for name, value in found.items() if name != HEAD}
