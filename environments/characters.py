"""A tokenizer that needs no model: one token for each character there is, and a chat template with tools."""

from __future__ import annotations

from collections.abc import Sequence

from .chat_template import ChatTemplate

END = "<|im_end|>"
END_ID = 0

_CHAT = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if not (loop.first and tools and message.role == 'system') %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class CharacterTokenizer:
    """For scripted policies: in tests, and in ``headrace env try`` without a model. Implements Tokenizer."""

    end_id = END_ID
    chat_stop_ids = (END_ID,)

    def __init__(self) -> None:
        self.chat_template = ChatTemplate(_CHAT)

    def encode(self, text: str) -> list[int]:
        first, *rest = [[ord(character) + 1 for character in part] for part in text.split(END)]
        return first + [id for part in rest for id in [END_ID, *part]]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(END if id == END_ID else chr(id - 1) for id in ids)
