"""Settings of the sinks: the ``[metrics]`` and ``[archive]`` tables of the run configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.settings import Settings


class MetricsSettings(Settings, frozen=True, kw_only=True):
    """``[metrics]``: the run's gauges as Prometheus text."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Port on localhost where they are served; 0 serves nothing."""


class ArchiveSettings(Settings, frozen=True, kw_only=True):
    """``[archive]``: rollouts as Parquet files in the run's folder, for analysis with other tools."""

    enabled: bool = False
    """Whether the archive is written."""
