"""Taking over a Hugging Face directory: checked, its weights in one file, without what a run does not need."""

from __future__ import annotations

import shutil
from pathlib import Path

from schemas import ModelError

from .check import (
    DTYPES,
    HEAD,
    WEIGHTS,
    ModelSummary,
    check_model,
    check_tensors,
    check_tokenizer,
    find_weights,
    is_tied,
    read_config,
)
from .directory import COMPANIONS, new_directory
from .tensors import write_tensors


def import_model(source: Path, folder: Path) -> ModelSummary:
    """Copy the model in ``source`` to ``folder``, which must not exist yet; float32 and bfloat16 stay as they are.

    Several weights files become one, half precision becomes float32, the copy of a tied head is left out.
    Raises ModelError where ``source`` is not a dense Qwen3 or Llama with safetensors and a tokenizer.
    """
    source, folder = Path(source), Path(folder)
    config = read_config(source)
    check_tokenizer(source, config)
    tensors = find_weights(source)
    unfit = sorted({tensor.dtype for tensor in tensors.values()} - {*DTYPES, "F16"})
    if unfit:
        raise ModelError(f"weights of {source} are {', '.join(unfit)}: save the model in float32 or bfloat16 first")
    check_tensors(source, config, tensors)
    if is_tied(config):
        tensors.pop(HEAD, None)
    with new_directory(folder) as aside:
        for name in COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, aside / name)
        write_tensors(aside / WEIGHTS, tensors)
        check_model(aside)
    return check_model(folder)
