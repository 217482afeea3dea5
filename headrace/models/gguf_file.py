"""What a GGUF file says of its model: read and checked before anything is converted.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas import ModelError

if TYPE_CHECKING:
    from gguf import ReaderTensor

FAMILIES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3moe": "Qwen3MoeForCausalLM"}
"""``general.architecture`` to what Hugging Face calls it."""


class GgufFile:
    """An open GGUF file of a supported architecture: its metadata by name, and its tensors, read when they are used."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError where the file is missing or damaged, or its model is not supported."""
        if importlib.util.find_spec("gguf") is None:
            raise ModelError(f"reading {path} needs gguf: pip install gguf")
        self.path = path
        try:
            self._values, self.tensors = _read(path)
        except FileNotFoundError:
            raise ModelError(f"{path} does not exist: name a GGUF file or a Hugging Face directory") from None
        except (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise ModelError(f"{path} is not a whole GGUF file ({error}): copy it again") from None
        self.architecture = str(self._values.get("general.architecture"))
        if self.architecture not in FAMILIES:
            raise ModelError(f"{path} has architecture {self.architecture}: use a model with one of "
                             f"{', '.join(sorted(FAMILIES))}")  # fmt: skip
        self._refuse_variants()

    def get(self, name: str, default: Any = None) -> Any:
        """A setting under its whole name."""
        return self._values.get(name, default)

    def of_model(self, name: str, default: Any = None) -> Any:
        """A setting of the architecture; with no ``default`` it must be there. Raises ModelError."""
        value = self._values.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise ModelError(f"{self.path} has no {self.architecture}.{name}: get the model from another place")
        return value

    def _refuse_variants(self) -> None:
        """Raise ModelError for what the file has and a directory made of it would silently lack."""
        for problem in self._variants():
            raise ModelError(f"{self.path} {problem}: import the model's Hugging Face directory, or use another model")

    def _variants(self) -> Iterator[str]:
        if self.get("split.count", 1) > 1:
            yield f"is one of {self.get('split.count')} parts (llama-gguf-split --merge joins them)"
        scaling = self.of_model("rope.scaling.type", "none")
        if scaling != "none" or "rope_freqs.weight" in self.tensors:
            yield f"scales its rotary positions ({scaling}) in a way that GGUF does not tell completely"
        if self.architecture == "llama" and self.of_model("expert_count", 0):
            yield "is a mixture of experts of another family than Qwen3"
        if self.of_model("attention.sliding_window", 0):
            yield "has a sliding window"
        if self.get("tokenizer.ggml.model") is None or not self.get("tokenizer.ggml.tokens"):
            yield "has no tokenizer"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, ReaderTensor]]:
    from gguf import GGUFReader

    reader = GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    return values, {tensor.name: tensor for tensor in reader.tensors}
