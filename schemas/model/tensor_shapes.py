"""The tensors of a model under Hugging Face's names, as its architecture says, and those that a directory has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from schemas.errors import ModelError

from .architecture import Architecture, Experts

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Shape = tuple[int, ...]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def tensor_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Name to shape of every tensor; a tied head is none of its own."""
    a = architecture
    shapes: dict[str, Shape] = {EMBEDDING: (a.vocabulary, a.dim), "model.norm.weight": (a.dim,)}
    if not a.tied:
        shapes[HEAD] = (a.vocabulary, a.dim)
    for layer in range(a.layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in _layer(a, layer)}
    return shapes


def _layer(a: Architecture, layer: int) -> Iterator[tuple[str, Shape]]:
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    yield "input_layernorm", (a.dim,)
    yield "post_attention_layernorm", (a.dim,)
    yield "self_attn.q_proj", (queries, a.dim)
    yield "self_attn.k_proj", (keys, a.dim)
    yield "self_attn.v_proj", (keys, a.dim)
    yield "self_attn.o_proj", (a.dim, queries)
    if a.qwen:
        yield "self_attn.q_norm", (a.head_dim,)
        yield "self_attn.k_norm", (a.head_dim,)
    if a.experts is not None and layer in a.experts.layers:
        yield from _mixture(a, a.experts)
    else:
        yield from _feed_forward("mlp", a.dim, a.ffn_dim)


def _mixture(a: Architecture, experts: Experts) -> Iterator[tuple[str, Shape]]:
    yield "mlp.gate", (experts.count, a.dim)
    for number in range(experts.count):
        yield from _feed_forward(f"mlp.experts.{number}", a.dim, experts.ffn_dim)


def _feed_forward(name: str, dim: int, hidden: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.gate_proj", (hidden, dim)
    yield f"{name}.up_proj", (hidden, dim)
    yield f"{name}.down_proj", (dim, hidden)


def own_tensors(expected: Mapping[str, Shape], found: Mapping[str, Shape], *, source: str) -> list[str]:
    """Those names in ``found`` that are the model's, when every one that is ``expected`` is there in its shape.

    Left out is what some directories hold besides: rotary tables, and the head that is the embedding once more.
    Raises ModelError, naming ``source``, for the first tensor that is missing, unknown, or of another shape.
    """
    own = [name for name in found if not name.endswith("rotary_emb.inv_freq") and (name != HEAD or HEAD in expected)]
    if (problem := _misfit(expected, {name: found[name] for name in own})) is not None:
        raise ModelError(f"{source} {problem}: take config.json and weights from the same model, whole")
    return own


def _misfit(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> str | None:
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            others = len(expected.keys() - found.keys()) - 1
            return f"lacks the tensor {name}" + (f" and {others} more" if others else "")
        if name not in expected:
            return f"has an unknown tensor {name}"
        if found[name] != expected[name]:
            return f"has {name} of shape {list(found[name])}, and its config.json asks for {list(expected[name])}"
    return None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of ``folder``: its one file, or those that its index names; they need not exist.

    Raises ModelError where there is neither or both, or the index is damaged or leads out of the folder.
    """
    index = folder / INDEX_FILE
    if (folder / WEIGHTS_FILE).is_file():
        if index.is_file():  # The engines do not agree on which of them counts.
            raise ModelError(f"{folder} has {WEIGHTS_FILE} and {INDEX_FILE}: remove the one that is not of this model")
        return [folder / WEIGHTS_FILE]
    if not index.is_file():
        other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.gguf") for path in folder.glob(pattern))
        beside = f" (only {other[0]}, which is not safetensors)" if other else ""
        raise ModelError(f"{folder} has no {WEIGHTS_FILE}{beside}: save the model with safetensors")
    try:
        names = sorted(set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()))
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{index} is not an index of weights ({error}): copy the model again") from None
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index} names {name!r}, which is no safetensors file beside it: copy the model again")
    if not names:
        raise ModelError(f"{index} names no file: copy the model again")
    return [folder / name for name in names]
