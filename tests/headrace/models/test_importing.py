"""Taking over Hugging Face directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headrace.models import check_model, import_model
from schemas import ModelError
from tests.headrace.models.model_folders import split_weights, weights, write_model


def test_import_keeps_what_a_run_needs(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "modeling_own.py").write_text("raise SystemExit")
    summary = import_model(source, tmp_path / "copy")
    assert summary == check_model(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip


def test_several_files_become_one(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    split_weights(source)
    import_model(source, tmp_path / "copy")
    found = load_file(tmp_path / "copy" / "model.safetensors")
    assert all(np.array_equal(found[name], value) for name, value in weights().items())
    assert not (tmp_path / "copy" / "model.safetensors.index.json").exists()


def test_half_precision_becomes_float32_exactly(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", weights(np.float16))
    assert import_model(source, tmp_path / "copy").dtype == "float32"
    found = load_file(tmp_path / "copy" / "model.safetensors")
    assert all(np.array_equal(found[name], value) for name, value in weights(np.float16).items())


def test_copy_of_a_tied_head_is_left_out(tmp_path: Path) -> None:
    import_model(write_model(tmp_path / "source", weights(head=True)), tmp_path / "copy")
    assert "lm_head.weight" not in load_file(tmp_path / "copy" / "model.safetensors")


def test_missing_part_of_several_is_named(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    split_weights(source)
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors cannot be read"):
        import_model(source, tmp_path / "copy")


def test_index_that_leads_outside_is_not_followed(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    split_weights(source)
    index = source / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))
    (source / "model-00002-of-00002.safetensors").rename(tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"names .* which is no safetensors file beside it"):
        import_model(source, tmp_path / "copy")


def test_existing_folder_is_left_alone(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("mine")
    with pytest.raises(ModelError, match="exists already: remove it, or choose another"):
        import_model(source, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["mine"]


def test_failed_import_leaves_nothing(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", weights(np.float64))
    with pytest.raises(ModelError, match="are F64: save the model in float32 or bfloat16 first"):
        import_model(source, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="cannot be written"):
        import_model(source, tmp_path / "file" / "copy")
