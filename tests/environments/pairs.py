"""A tokenizer for tests of conversations: letters, pairs of letters, and special tokens; and templates for it.

A text has many encodings, so that what was sampled differs from what encoding it again would give.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from environments.chat_template import ChatTemplate

LETTERS = "abcdesu:?. \n"
SPECIAL = ["<start>", "<end>", "<stop>"]
WORDS = [*LETTERS, *(a + b for a in LETTERS for b in LETTERS), *SPECIAL]
END_ID, STOP_ID = WORDS.index("<end>"), WORDS.index("<stop>")

PLAIN = ChatTemplate(
    "{% for m in messages %}<start>{{ m.role[0] }}\n{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>a\n{% endif %}"
)
FORGETFUL = ChatTemplate(
    "{% for m in messages %}<start>{{ m.role[0] }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('?')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<end>\n{% endfor %}{% if add_generation_prompt %}<start>a\n{% endif %}"
)
"""Leaves out what an assistant said before its last question mark, as templates do with thinking."""


class Pairs:
    """Implements environments.Tokenizer."""

    end_id = END_ID
    chat_stop_ids = (STOP_ID, END_ID)

    def __init__(self, chat_template: ChatTemplate | None = PLAIN) -> None:
        self.chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        """Pairs where there are two letters, from the left."""
        return [WORDS.index(word) for word in re.findall(r"<start>|<end>|<stop>|[^<][^<]|[^<]", text, re.DOTALL)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(WORDS[id] for id in ids)
