"""What is played: the Environment protocol, the policy handle, and the environments that ship with Headrace."""

from .characters import CharacterTokenizer
from .chat_template import load_chat_template
from .environment import Environment
from .outcome import Outcome, checked_outcome
from .policy import Policy, Reply, TooLong, Transcript
from .registry import environment_kinds, load_environment
from .sampling import Finish, Sample, Sampler
from .scripted import Demonstrator, ScriptedPolicy
from .tokenizer import FastTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "CharacterTokenizer", "Demonstrator", "Environment", "FastTokenizer", "Finish", "Outcome", "Policy", "Reply",
    "Sample", "Sampler", "ScriptedPolicy", "Tokenizer", "TooLong", "Transcript", "checked_outcome",
    "environment_kinds", "load_chat_template", "load_environment", "load_tokenizer",
]  # fmt: skip
