"""A model over several ranks, by torchtitan's parallelisms: FSDP, tensor and context parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas import ConfigError

from .attention import varlen_attention
from .device import COMPUTES_IN, ON_CPU

# isort: split
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan_distributed
from torchtitan.models.common.config_utils import get_attention_config
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.qwen3 import Qwen3Model
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config

from .execution import Execution
from .world import World


def prepare(config: Any, world: World) -> None:
    """Change a model's configuration to what the device and the parallelisms of ``world`` need.

    Raises ConfigError where tensor parallelism does not divide the attention heads.
    """
    if not ON_CPU:  # not run on a GPU yet: both take their masks from model.get_attention_masks
        attention = get_attention_config("flex") if world.context_parallel > 1 else varlen_attention()
        for layer in config.layers:
            layer.attention.inner_attention = attention
    if world.tensor_parallel > 1:
        _declare_shards(config, world)


def _declare_shards(config: Any, world: World) -> None:
    """Say how tensor parallelism divides each part."""
    attention = config.layers[0].attention
    for heads, kind in ((attention.n_heads, "attention"), (attention.n_kv_heads or attention.n_heads, "key-value")):
        if heads % world.tensor_parallel:
            raise ConfigError(
                f"trainer.tensor_parallel {world.tensor_parallel} does not divide the model's {heads} {kind} heads: "
                "set it to a number that does, and use trainer.data_parallel for the other ranks"
            )
    # Without sequence parallelism, for which the columns of every row had to be a multiple of the ranks.
    if isinstance(config, Qwen3Model.Config):
        set_qwen3_sharding_config(config, enable_sp=False, enable_ep=False)
    else:
        set_llama3_sharding_config(config, enable_sp=False)


def shard(model: Any, parallelize: Callable[..., Any], world: World, execution: Execution) -> Any:
    """The model, still without weights, sharded over the ranks of ``world`` by ``parallelize``, torchtitan's for it."""
    # Gloo ranks work with this backend only; the others need collectives that gloo lacks.
    parallelism = ParallelismConfig(
        spmd_backend="partial_dtensor",
        data_parallel_shard_degree=world.data_parallel,
        tensor_parallel_degree=world.tensor_parallel,
        context_parallel_degree=world.context_parallel,
        enable_sequence_parallel=False,
    )
    dims = ParallelDims.from_config(parallelism, world.size)
    titan_distributed.set_spmd_backend(parallelism.spmd_backend)
    dims.build_mesh()
    model = parallelize(
        model,
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param=COMPUTES_IN),
        parallelism=parallelism,
        compile_config=execution.compiling,
        ac_config=execution.checkpointing,
        dump_folder="",
    )
    if ON_CPU:
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no averaging reduction
    return model
