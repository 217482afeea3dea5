"""Model directories: checking, importing and making them. Loads no engine; what makes a model loads its own."""

from .check import ModelSummary, check_model, has_chat_template
from .fetching import fetch
from .importing import import_model
from .making import make_model
from .tiny import Made, make_tiny

__all__ = [
    "Made", "ModelSummary", "check_model", "fetch", "has_chat_template", "import_model", "make_model", "make_tiny",
]  # fmt: skip
