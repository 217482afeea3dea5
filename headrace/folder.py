"""A run's folder: ``DIR/<run name>``, and where everything lies in it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from schemas import RunError

DEFAULT_DIR = Path("runs")


class RunFolder(msgspec.Struct, frozen=True):
    """Paths of one run."""

    path: Path
    """``DIR/<run name>``."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def nats(self) -> Path:
        """Store and credentials of the embedded server."""
        return self.path / "nats"

    @property
    def weights(self) -> Path:
        """Root of the weights store."""
        return self.path / "weights"

    def cache(self, instance: str) -> Path:
        """Where ``instance`` keeps weights that came through NATS, alone."""
        return self.path / "cache" / instance

    @property
    def model(self) -> Path:
        """Directory of the model where it came through NATS."""
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        """``step-N`` folders of the trainer."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """``<role>.log`` files."""
        return self.path / "logs"

    @property
    def archive(self) -> Path:
        """Parquet files."""
        return self.path / "archive"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here, as far as may be seen."""
        try:
            return (self.path / "config.json").is_file()
        except PermissionError:
            return False

    def make(self) -> None:
        """Make the folder where it is missing. Raises RunError where nothing can be written there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as file:
                file.write(b"\0")
        except OSError as error:
            raise RunError(
                f"the run cannot be kept in {self.path} ({error.strerror}): give another folder with --dir, or make "
                "this one writable"
            ) from None


def find_run(name: str, parent: Path) -> RunFolder:
    """The folder of an existing run. Raises RunError that names the runs which there are."""
    folder = RunFolder(parent / name)
    if folder.exists:
        return folder
    known = ", ".join(run.name for run in all_runs(parent)) or "none"
    raise RunError(
        f"there is no run {name!r} in {parent} (runs there: {known}): name one, or give the runs' folder with --dir"
    )


def all_runs(parent: Path) -> list[RunFolder]:
    """The runs in ``parent``, by name."""
    if not parent.is_dir():
        return []
    return [run for path in sorted(parent.iterdir()) if (run := RunFolder(path)).exists]
