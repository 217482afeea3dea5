"""Text to token ids and back, by the ``tokenizers`` library alone: loading one takes milliseconds.

``transformers`` would take seconds to import and add nothing: environments speak plain text, not chat templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import tokenizers

from schemas import EnvironmentFault, ModelError


class Tokenizer(Protocol):
    """What the policy needs of a model's tokenizer."""

    @property
    def end_id(self) -> int:
        """The token that ends a reply."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, nothing added before or after."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; special tokens stay visible, so that a reply that holds one is not taken for another."""
        ...


class FastTokenizer:
    """The tokenizer of a Hugging Face directory. Implements Tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer, end_id: int) -> None:
        self._backend = backend
        self._end_id = end_id
        unknown = getattr(backend.model, "unk_token", None)
        self._unknown_id = None if unknown is None else backend.token_to_id(unknown)

    @property
    def end_id(self) -> int:
        return self._end_id

    def encode(self, text: str) -> list[int]:
        """Raises EnvironmentFault where the vocabulary lacks a part of ``text``."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._unknown_id is not None and self._unknown_id in ids:
            start, end = encoding.offsets[ids.index(self._unknown_id)]
            raise EnvironmentFault(
                f"the model's vocabulary has no token for {text[start:end]!r} in {text[:60]!r}: "
                "use a model that knows it, or an environment with other characters"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


def load_tokenizer(model_dir: Path | str) -> FastTokenizer:
    """The tokenizer in ``model_dir``/tokenizer.json, with the end token that the model's configuration names.

    Raises ModelError where the file is missing or damaged, or no file names an end token.
    """
    folder = Path(model_dir)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{path} does not exist: model.path must be a Hugging Face directory with a tokenizer.json "
            "(headrace model tiny DIR makes one)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} is not a tokenizer ({error}): copy the model again") from None
    return FastTokenizer(backend, _end_id(folder, backend))


def _end_id(folder: Path, backend: tokenizers.Tokenizer) -> int:
    """From generation_config.json, then the tokenizer's own configuration, then config.json."""
    named = _first(_read(folder / "generation_config.json").get("eos_token_id"))
    if named is None:
        token = _read(folder / "tokenizer_config.json").get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        named = backend.token_to_id(text) if isinstance(text, str) else None
    if named is None:
        named = _first(_read(folder / "config.json").get("eos_token_id"))
    if named is None:
        raise ModelError(
            f"{folder} names no end token: set eos_token_id in its generation_config.json to the id "
            "of the token that ends a reply"
        )
    if not 0 <= named < backend.get_vocab_size(with_added_tokens=True):
        raise ModelError(
            f"{folder}: end token {named} is not in the vocabulary: correct eos_token_id in generation_config.json"
        )
    return named


def _first(ids: Any) -> int | None:
    """Of an id or a list of ids, in the order of preference that the model's authors gave."""
    if isinstance(ids, list):
        ids = ids[0] if ids else None
    return ids if isinstance(ids, int) else None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is not a JSON object ({error}): copy the model again") from None
