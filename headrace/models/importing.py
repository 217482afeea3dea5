"""Taking over a model: checked, its weights in one file, without what a run does not need."""

from __future__ import annotations

import shutil
from pathlib import Path

from schemas import ModelError
from schemas.model import WEIGHTS_FILE, read_architecture

from .check import DTYPES, ModelSummary, check_model, check_tokenizer, find_tensors
from .directory import COMPANIONS, new_directory
from .gguf_conversion import convert_gguf
from .tensors import write_tensors


def import_model(source: Path, folder: Path) -> ModelSummary:
    """Make the model in ``source`` one that a run starts from, in ``folder``, which must not exist yet.

    ``source``: a Hugging Face directory, or a GGUF file, or a directory that holds one and no config.json.
    Raises ModelError where it is damaged or not supported.
    """
    source, folder = Path(source), Path(folder)
    if (gguf := _gguf(source)) is not None:
        return import_gguf(gguf, folder)
    architecture = read_architecture(source)
    check_tokenizer(source, architecture)
    tensors = find_tensors(source, architecture)
    unfit = sorted({tensor.dtype for tensor in tensors.values()} - {*DTYPES, "F16"})
    if unfit:
        raise ModelError(f"weights of {source} are {', '.join(unfit)}: save the model in float32 or bfloat16 first")
    with new_directory(folder) as aside:
        for name in COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, aside / name)
        write_tensors(aside / WEIGHTS_FILE, tensors)
        check_model(aside)
    return check_model(folder)


def import_gguf(file: Path, folder: Path) -> ModelSummary:
    """Make ``folder``, which must not exist yet, of a GGUF file. Raises ModelError."""
    with new_directory(folder) as aside:
        convert_gguf(file, aside)
        check_model(aside)
    return check_model(folder)


def _gguf(source: Path) -> Path | None:
    if source.suffix == ".gguf":
        return source
    found = [] if (source / "config.json").exists() else sorted(source.glob("*.gguf"))
    if len(found) > 1:
        raise ModelError(f"{source} holds {len(found)} GGUF files: name one of them, {found[0]} for example")
    return found[0] if found else None
