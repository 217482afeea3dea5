"""The metrics sink: a run's figures as Prometheus text on localhost."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from bus import Bus, Logged
from schemas import DEAD, EVALUATIONS, LEDGER, ROLLOUTS, TASKS, TELEMETRY, ConfigError, StreamSpec

from .figures import Figures
from .following import following
from .settings import MetricsSettings

ADDRESS = "127.0.0.1"
"""Nobody is asked for a password here, so nobody else can reach it."""
FOLLOWED: tuple[StreamSpec, ...] = (TASKS, ROLLOUTS, EVALUATIONS, LEDGER, TELEMETRY, DEAD)


class FiguresCollector(Collector):
    """Figures behind a lock: events come on the event loop, scrapes on the HTTP server's threads."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._lock = threading.Lock()

    def take(self, stream: str, logged: Logged) -> None:
        with self._lock:
            self._figures.take(stream, logged)

    def collect(self) -> Iterator[PrometheusMetric]:
        with self._lock:
            families = list(self._figures.families())
        yield from families


@contextmanager
def served(collector: Collector, port: int) -> Iterator[int]:
    """Serve ``collector`` at ``/metrics`` on localhost; gives the port, a free one where ``port`` is 0.

    Raises ConfigError where the port is taken or not allowed.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=ADDRESS, registry=registry)
    except OSError as error:
        why = {errno.EADDRINUSE: "is taken", errno.EACCES: "needs privileges"}.get(error.errno or 0, str(error))
        raise ConfigError(
            f"metrics.port {port} {why}: give another one (--set metrics.port=9464), or 0 to serve no metrics"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def run_metrics(bus: Bus, settings: MetricsSettings, stop: asyncio.Event) -> None:
    """Count a run's events from the beginning of its log and serve the figures until ``stop`` is set.

    Nothing is stored: the figures are a function of the log. Raises ConfigError where the port is 0 or cannot be used.
    """
    if settings.port == 0:
        raise ConfigError("metrics.port is 0, which serves nothing: give a port, for example --set metrics.port=9464")
    collector = FiguresCollector(Figures(bus.run))
    with served(collector, settings.port):
        followers = [asyncio.create_task(_count(bus, spec, collector, stop)) for spec in FOLLOWED]
        try:
            await asyncio.gather(*followers)
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)


async def _count(bus: Bus, spec: StreamSpec, collector: FiguresCollector, stop: asyncio.Event) -> None:
    async for logged in following(bus, spec, stop):
        collector.take(spec.kind, logged)
