"""A mixture of experts, as torchtitan's layers hold it.

Shape legend: R tokens by expert (each token once for every expert that it goes to), E experts, D model dimension,
F hidden dimension of an expert.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.tensor import DTensor

from schemas.model import Experts

from .device import ON_CPU

# isort: split
from torchtitan.models.common.config_utils import make_moe_config, make_routed_experts_config, make_router_config
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.models.common.param_init import skip_param_init

# The router asks for float32 on every device; on the CPU that is what it gets without asking.
warnings.filterwarnings("ignore", message="In CPU autocast, but the target dtype is not supported")

_NO_INIT = {"weight": skip_param_init}
_EXPERTS_NO_INIT = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), skip_param_init)


class LoopedExperts(GroupedExperts):  # type: ignore[misc]  # torchtitan ships no types
    """One expert after the other, in the parameters' own type.

    torchtitan's grouped product computes in bfloat16, which a float32 run on the CPU must not.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):  # type: ignore[misc]
        """Nothing more to set."""

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """x_RD: sorted by expert. Returns [R, D]."""
        w1_EFD, w2_EDF, w3_EFD = (_local(w) for w in (self.w1_EFD, self.w2_EDF, self.w3_EFD))
        parts = []
        # An expert without a token takes part with none, so that its gradient is zero and not missing.
        for e, x_D in enumerate(torch.split(x_RD, num_tokens_per_expert_E.tolist())):
            hidden_F = F.silu(F.linear(x_D, w1_EFD[e])) * F.linear(x_D, w3_EFD[e])
            parts.append(F.linear(hidden_F, w2_EDF[e]))
        return torch.cat(parts)


def _local(weight: torch.Tensor) -> torch.Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def moe_config(dim: int, experts: Experts) -> Any:
    """The configuration of one layer's mixture.

    Without torchtitan's balancing of the load: it moves a bias in the router's choice, which no published model of
    these families has and no generator would know.
    """
    routed = make_routed_experts_config(
        dim=dim,
        hidden_dim=experts.ffn_dim,
        num_experts=experts.count,
        top_k=experts.per_token,
        param_init=_EXPERTS_NO_INIT,
        comm_backend="standard",
    )
    if ON_CPU:  # the grouped product of a GPU was not run yet
        routed.inner_experts = LoopedExperts.Config(
            dim=dim, hidden_dim=experts.ffn_dim, num_experts=experts.count, param_init=_EXPERTS_NO_INIT
        )
    return make_moe_config(
        num_experts=experts.count,
        router=make_router_config(
            dim=dim,
            num_experts=experts.count,
            gate_param_init=_NO_INIT,
            top_k=experts.per_token,
            score_func="softmax",
            route_norm=experts.normalized,
        ),
        routed_experts=routed,
        load_balance_coeff=None,
    )
