"""A model directory that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas import ModelError

COMPANIONS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json",
)  # fmt: skip
"""Files of a model that lie beside its weights; a directory has some of them."""


@contextmanager
def new_directory(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` to write into; it takes that name when the block ends, and is gone when it raises.

    Raises ModelError where ``folder`` holds something already, or the disk refuses.
    """
    _refuse_to_overwrite(folder)
    aside = folder.parent / f".{folder.name}.{os.getpid()}"
    try:
        _remove_abandoned(folder)
        aside.mkdir(parents=True)
        yield aside
        # The same look again: another process may have made it meanwhile.
        _refuse_to_overwrite(folder)
        aside.rename(folder)
    except OSError as error:
        raise ModelError(f"{folder} cannot be written ({error}): choose another folder, or free the disk") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _refuse_to_overwrite(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ModelError(f"{folder} exists already: remove it, or choose another folder")


def _remove_abandoned(folder: Path) -> None:
    """What a process that was killed has left beside ``folder``: half a model may be gigabytes."""
    for aside in folder.parent.glob(f".{folder.name}.*"):
        number = aside.name.rpartition(".")[2]
        if number.isdecimal() and (int(number) == os.getpid() or not Path(f"/proc/{number}").exists()):
            shutil.rmtree(aside, ignore_errors=True)
