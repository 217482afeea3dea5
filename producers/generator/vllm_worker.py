"""What vLLM mixes into its workers for us: loading weights while requests go on. It runs in vLLM's other processes.

``reload_weights`` of vLLM takes 0.3 s for 135 million parameters on the CPU, and no request goes on meanwhile. So the
new weights are *staged* before: in a thread, on copies of the model's modules that share everything else with them,
they are read, merged and packed as vLLM does it. What is left for the pause is to hand the tensors over.

On a GPU the weights would be there twice, and captured graphs have the addresses of the ones in use; there, and for
layers whose loading changes more than their own tensors, nothing is staged and ``reload_weights`` does all.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

TENSORS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Attributes of a module that its copy has for itself."""


class ReloadingWorker:
    """``worker_extension_cls`` of vLLM: its methods are called by name, through ``collective_rpc``."""

    headrace_staged: StagedWeights | None = None

    def begin_staging(self, folder: str) -> None:
        """Start to make the weights of ``folder`` ready, if they can be."""
        worker: Any = self
        model = worker.model_runner.get_model()
        self.headrace_staged = StagedWeights(model, folder) if _can_be_staged(model) else None

    def has_staged(self) -> bool:
        """Whether there is nothing more to wait for before ``load_all_weights``."""
        return self.headrace_staged is None or self.headrace_staged.ended

    def staged_folder(self) -> str | None:
        """Whose weights are ready to be handed over; waits for the thread."""
        staged = self.headrace_staged
        return staged.folder if staged is not None and staged.whole() else None

    def load_all_weights(self, folder: str) -> None:
        """Replace all weights by those of ``folder``, between two steps."""
        staged = self.headrace_staged if self.staged_folder() == folder else None
        self.headrace_staged = None
        if staged is not None:
            staged.hand_over()
        else:
            _reload(self, folder)


class StagedWeights:
    """The weights of ``folder``, as the modules of ``model`` need them, made in a thread of their own."""

    def __init__(self, model: Any, folder: str) -> None:
        self.folder = folder
        self._whole = False
        self._copies: dict[Any, Any] = {}
        """Module in use to its copy."""
        self._thread = threading.Thread(target=self._stage, args=(model,), name="staging", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def whole(self) -> bool:
        """Whether all of it is ready; waits for the thread."""
        self._thread.join()
        return self._whole

    def hand_over(self) -> None:
        """Give the staged tensors, and what was made of them, to the modules in use."""
        for module, staged in self._copies.items():
            for name, parameter in staged._parameters.items():
                if parameter is not None and parameter is not module._parameters[name]:
                    module._parameters[name].data = parameter.data
            for name, value in staged.__dict__.items():
                if name not in TENSORS and module.__dict__.get(name) is not value:
                    module.__dict__[name] = value  # the call of a packed layer, above all
        for staged in self._copies.values():
            staged.__dict__.clear()  # its parameters have loaders that know it: a cycle, with all weights in it

    def _stage(self, model: Any) -> None:
        import torch

        try:
            with torch.no_grad():
                self._load(_copy(model, self._copies))
            self._whole = True
        except Exception as error:  # whatever it is, reload_weights will meet it too, and say so
            logging.getLogger(__name__).warning("weights in %s were not staged: %r", self.folder, error)

    def _load(self, model: Any) -> None:
        """Load into ``model``, of copies, in the way of vLLM's layerwise reload, but for its copying back."""
        from vllm.model_executor.model_loader.reload import layerwise, meta

        loaded, tied = [], []
        owners: dict[Any, Any] = {}
        for module, staged in self._copies.items():
            own = [parameter for parameter in module._parameters.values() if parameter is not None]
            if not own:
                continue
            if all(parameter in owners for parameter in own):
                tied.append(
                    (staged, {name: owners[value] for name, value in module._parameters.items() if value is not None})
                )
                continue
            owners.update(dict.fromkeys(own, staged))
            info, known = layerwise.get_layerwise_info(staged), layerwise.get_layerwise_info(module)
            parameters, buffers = known.restore_metadata
            info.restore_metadata = _metadata(parameters, module, staged), _metadata(buffers, module, staged)
            info.restore_device = known.restore_device
            meta.restore_layer_on_meta(staged, info)
            layerwise.initialize_online_processing(staged)
            loaded.append((staged, info))
        model.load_weights(_tensors(self.folder))
        for staged, info in loaded:
            if info.can_load():  # Padding is part of it, which no tensor fills.
                if not info.load_numel:
                    raise ValueError(f"no tensor for a {type(staged).__name__}")
                layerwise._layerwise_process(staged, info)
        for staged, names in tied:
            for name, owner in names.items():
                staged._parameters[name] = owner._parameters[name]
            _pack_again(staged)


def _can_be_staged(model: Any) -> bool:
    """Whether nothing but tensors and calls of the modules' own is changed by loading weights on this device."""
    from vllm.model_executor.model_loader.reload.meta import SKIP_MODULES, SKIP_TENSORS

    return next(model.parameters()).device.type == "cpu" and not any(
        hasattr(getattr(module, "quant_method", None), "moe_kernel")
        or type(module).__name__ in SKIP_MODULES
        or any(module._parameters.get(name) is not None for name in SKIP_TENSORS)
        for module in model.modules()
    )


def _copy(module: Any, copies: dict[Any, Any]) -> Any:
    """A copy of ``module`` and all below it, each made once. They share tensors with the originals."""
    if module not in copies:
        staged = copies[module] = object.__new__(type(module))
        staged.__dict__.update(module.__dict__)
        staged.__dict__.update({name: copy.copy(module.__dict__[name]) for name in TENSORS})
        for name, child in staged._modules.items():
            staged._modules[name] = child if child is None else _copy(child, copies)
    return copies[module]


def _metadata(tensors: dict[str, Any], module: Any, staged: Any) -> dict[str, Any]:
    """What vLLM knows of the shapes and loaders of a module's tensors, for its copy: they are bound to that one."""
    from vllm.model_executor.model_loader.reload import layerwise, meta, sanitize

    own: dict[str, Any] = {name: meta.to_meta_tensor(tensor) for name, tensor in tensors.items()}
    for tensor in own.values():
        tensor.weight_loader = layerwise._get_original_loader(tensor)
        for name, value in tensor.__dict__.items():
            if isinstance(value, MethodType) and value.__self__ in (module, sanitize.layer_ref_sentinel):
                tensor.__dict__[name] = value.__func__.__get__(staged)
    return own


def _tensors(folder: str) -> Iterator[tuple[str, Any]]:
    """The tensors of ``folder/model.safetensors`` by name; the file is mapped, not read."""
    from safetensors import safe_open

    with safe_open(Path(folder) / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            yield name, file.get_tensor(name)


def _reload(worker: Any, folder: str) -> None:
    """Replace the weights in place, in vLLM's own way.

    On the CPU a layer multiplies by a packed copy of its weights. ``reload_weights`` packs each layer that it
    loads, and so passes over an output head that is tied to the embedding: it would stay the one of the start.
    A mixture of experts packs only where its kernel is new: else plain weights would be taken for packed ones.
    """
    model: Any = worker.model_runner.get_model()
    if next(model.parameters()).device.type == "cpu":
        methods: list[Any] = [getattr(module, "quant_method", None) for module in model.modules()]
        for method in methods:
            if hasattr(method, "moe_kernel"):
                method.moe_kernel = None
    worker.reload_weights(weights_path=folder)
    head: Any = getattr(model, "lm_head", None)
    if head is not None:
        _pack_again(head)


def _pack_again(module: Any) -> None:
    """Have ``module`` pack the weights that it has now, if it multiplies by packed ones."""
    if hasattr(module, "cpu_linear"):
        module.quant_method.process_weights_after_loading(module)
