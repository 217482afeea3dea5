"""The processes that train together: one, or as many as torchrun started."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from schemas import ConfigError

from .device import ON_CPU


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The place of this process among the ranks."""

    rank: int
    size: int
    device: torch.device
    tensor_parallel: int = 1
    """Ranks that divide each layer's matrices among them. They follow each other, as in torchtitan's meshes."""
    context_parallel: int = 1
    """Groups of those that divide the columns of their rows among them."""
    context_group: Any = None
    """Process group of the ranks that divide this one's columns; None where nobody does."""

    @property
    def data_parallel(self) -> int:
        """Shares of the data: ``tensor_parallel * context_parallel`` ranks after the other have the same."""
        return self.size // (self.tensor_parallel * self.context_parallel)

    @property
    def context_rank(self) -> int:
        """Number of this rank's columns."""
        return self.rank // self.tensor_parallel % self.context_parallel

    @property
    def sharded(self) -> bool:
        """Whether the model goes through FSDP.

        One process on the CPU needs neither shards nor a process group. On a GPU FSDP brings the mixed
        precision as well, so it is used for one process too.
        """
        return self.size > 1 or self.device.type != "cpu"

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """``values`` added up over the shares of the data: ranks that have the same share count once."""
        own = values if self.rank % (self.tensor_parallel * self.context_parallel) == 0 else torch.zeros_like(values)
        return self._reduce(own, dist.ReduceOp.SUM)

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """The greatest of ``values`` over all ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def sum_context(self, values: torch.Tensor) -> None:
        """Add up ``values``, in place, over the ranks that divide this one's columns."""
        dist.all_reduce(values, group=self.context_group)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self.size > 1:
            dist.barrier()

    def _reduce(self, values: torch.Tensor, operation: Any) -> torch.Tensor:
        if self.size > 1:
            dist.all_reduce(values, op=operation)
        return values


def join_world(*, tensor_parallel: int = 1, context_parallel: int = 1) -> World:
    """Join the ranks that torchrun's environment variables name; without them be the only one.

    A single process opens no port: its process group, where it needs one, lives in its own memory.
    Raises ConfigError where a GPU is named that PyTorch does not find.
    """
    _refuse_a_lost_gpu()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ON_CPU:
        device = torch.device("cpu")
    else:  # not run on a GPU yet
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    world = World(
        rank=rank, size=size, device=device, tensor_parallel=tensor_parallel, context_parallel=context_parallel
    )
    if world.sharded and not dist.is_initialized():
        # Without a store, the address of rank 0 comes from the environment.
        store = torch._C._distributed_c10d.HashStore() if size == 1 else None
        dist.init_process_group("gloo" if ON_CPU else "cuda:nccl,cpu:gloo", store=store, rank=rank, world_size=size)
    if context_parallel > 1:
        world = msgspec.structs.replace(world, context_group=_context_group(world))
    return world


def _refuse_a_lost_gpu() -> None:
    """Training would go on on the CPU, far slower, and nobody would know why."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if ON_CPU and torch.version.cuda is not None and named not in ("", "-1"):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES names {named}, and PyTorch (for CUDA {torch.version.cuda}) finds no GPU: look at "
            "the driver (nvidia-smi), name one that is there, or set the variable to nothing to train on the CPU"
        )


def _context_group(world: World) -> Any:
    """Of this rank. Every rank takes part in making all of them."""
    first = [rank for rank in range(world.size) if rank // world.tensor_parallel % world.context_parallel == 0]
    members = [[rank + number * world.tensor_parallel for number in range(world.context_parallel)] for rank in first]
    group, _ = dist.new_subgroups_by_enumeration(members)  # type: ignore[no-untyped-call]
    return group
