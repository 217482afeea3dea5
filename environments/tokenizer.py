"""Text to token ids and back, by the ``tokenizers`` library alone: loading one takes milliseconds.

``transformers`` would take seconds to import and add nothing: chat templates need jinja2 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from schemas import EnvironmentFault, ModelError

from .chat_template import ChatTemplate, load_chat_template, read_json


class Tokenizer(Protocol):
    """What the policy needs of a model's tokenizer."""

    @property
    def end_id(self) -> int:
        """The token that ends a reply."""
        ...

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How the model wants conversations written; None where it knows none."""
        ...

    @property
    def chat_stop_ids(self) -> Sequence[int]:
        """Tokens that end a reply in a conversation; the last is the one that the template itself writes."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, nothing added before or after."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; special tokens stay visible, so that a reply that holds one is not taken for another."""
        ...


class FastTokenizer:
    """The tokenizer of a Hugging Face directory. Implements Tokenizer."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        end_id: int,
        *,
        chat_template: ChatTemplate | None = None,
        more_end_ids: Sequence[int] = (),
    ) -> None:
        """``more_end_ids``: of models that have several end tokens, those beside ``end_id``."""
        self._backend = backend
        self._end_id = end_id
        self._chat_template = chat_template
        closing = None if chat_template is None else _closing_id(chat_template, backend)
        ends = dict.fromkeys([end_id, *more_end_ids])
        self._chat_stop_ids = [id for id in ends if id != closing] + ([] if closing is None else [closing])
        unknown = getattr(backend.model, "unk_token", None)
        self._unknown_id = None if unknown is None else backend.token_to_id(unknown)

    @property
    def end_id(self) -> int:
        return self._end_id

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._chat_template

    @property
    def chat_stop_ids(self) -> Sequence[int]:
        return self._chat_stop_ids

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
    """The tokenizer in ``model_dir``/tokenizer.json, with the end tokens that the model's configuration names, and
    with the model's chat template where it has one.

    Raises ModelError where a file is missing or damaged, or no file names an end token.
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
    first, *more = _end_ids(folder, backend)
    return FastTokenizer(backend, first, chat_template=load_chat_template(folder), more_end_ids=more)


def _closing_id(template: ChatTemplate, backend: tokenizers.Tokenizer) -> int | None:
    """The special token that ``template`` writes after what an assistant said; None where that is no special token.

    It ends replies even where the model's files name another: they often name the one of the plain base model.
    """
    said = "Yes."
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": said}]
    try:
        text = template.render(messages, add_generation_prompt=False)
    except EnvironmentFault:
        return None
    ids = backend.encode(text.rpartition(said)[2].lstrip(), add_special_tokens=False).ids
    token = backend.get_added_tokens_decoder().get(ids[0]) if ids else None
    return ids[0] if token is not None and token.special else None


def _end_ids(folder: Path, backend: tokenizers.Tokenizer) -> list[int]:
    """From generation_config.json, then the tokenizer's own configuration, then config.json; the preferred first."""
    named = _ids(read_json(folder / "generation_config.json").get("eos_token_id"))
    if not named:
        token = read_json(folder / "tokenizer_config.json").get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        named = _ids(backend.token_to_id(text) if isinstance(text, str) else None)
    if not named:
        named = _ids(read_json(folder / "config.json").get("eos_token_id"))
    if not named:
        raise ModelError(
            f"{folder} names no end token: set eos_token_id in its generation_config.json to the id "
            "of the token that ends a reply"
        )
    for id in named:
        if not 0 <= id < backend.get_vocab_size(with_added_tokens=True):
            raise ModelError(
                f"{folder}: end token {id} is not in the vocabulary: correct eos_token_id in generation_config.json"
            )
    return named


def _ids(named: Any) -> list[int]:
    """Of an id or a list of ids, in the order of preference that the model's authors gave."""
    return [id for id in (named if isinstance(named, list) else [named]) if isinstance(id, int)]
