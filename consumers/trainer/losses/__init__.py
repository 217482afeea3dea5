"""Policy-gradient losses: what each says of a token, and how a step's loss is made of its tokens.

Each loss is one pure function from ``Tokens`` to ``TokenLoss``. A package brings its own by an entry point of group
``headrace.losses``. torch is not loaded through this door.
"""

from .registry import GROUP, check_loss, load_loss, loss_names
from .tokens import TokenLoss, Tokens

__all__ = ["GROUP", "TokenLoss", "Tokens", "check_loss", "load_loss", "loss_names"]
