"""One question to the policy: as a conversation where the model has a chat template, else as plain text."""

from __future__ import annotations

from .policy import Policy, Reply


async def ask(
    policy: Policy, question: str, *, system: str = "", chat: bool | None = None, max_tokens: int | None = None
) -> Reply:
    """The reply to ``question``, the first and only turn.

    ``system``: what is said before it, as a system message or as a paragraph of its own. ``chat``: whether by the
    model's chat template; None means where it has one. Raises as Policy.say and Policy.chat.
    """
    if policy.has_chat if chat is None else chat:
        messages = [{"role": "system", "content": system}] if system else []
        return await policy.chat([*messages, {"role": "user", "content": question}], max_tokens=max_tokens)
    return await policy.say(f"{system}\n\n{question}" if system else question, max_tokens=max_tokens)
