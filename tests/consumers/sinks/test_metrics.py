from __future__ import annotations

import asyncio
import socket
import urllib.request
from http.client import HTTPResponse

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bus import Bus
from consumers.sinks import MetricsSettings, run_metrics
from consumers.sinks.figures import Figures
from consumers.sinks.metrics import FiguresCollector, served
from schemas import ConfigError
from tests import examples
from tests.logs import logged
from tests.waiting import eventually


@pytest.fixture
def collector() -> FiguresCollector:
    collector = FiguresCollector(Figures("demo"))
    collector.take("ROLLOUTS", logged(examples.rollout()))
    return collector


def scraped(port: int) -> dict[str, float]:
    response: HTTPResponse
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_scrape_has_the_figures_of_the_moment(collector: FiguresCollector) -> None:
    with served(collector, 0) as port:
        assert scraped(port)["headrace_rollouts_total"] == 1
        collector.take("ROLLOUTS", logged(examples.rollout(member=4), sequence=2))
        assert scraped(port)["headrace_rollouts_total"] == 2


def test_only_localhost_is_served(collector: FiguresCollector) -> None:
    with served(collector, 0) as port, socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.2", port))  # would be taken if every address were served


def test_taken_port_is_named_with_its_remedy(collector: FiguresCollector) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=rf"metrics.port {port} is taken: give another one"),
            served(collector, port),
        ):
            pass


def test_port_is_free_again_afterwards(collector: FiguresCollector) -> None:
    with served(collector, 0) as port:
        pass
    with served(collector, port) as again:
        assert again == port


async def test_figures_follow_the_log_until_the_sink_is_stopped(writer: Bus, sink: Bus) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    for event in examples.every_event():
        await writer.publish(msgspec.structs.replace(event, run=writer.run))
    stop = asyncio.Event()
    running = asyncio.create_task(run_metrics(sink, MetricsSettings(port=port), stop))

    async def has(name: str, value: float) -> bool:
        try:
            return (await asyncio.to_thread(scraped, port)).get(name) == value
        except OSError:
            return False

    await eventually(lambda: has("headrace_rollouts_total", 1))
    await eventually(lambda: has("headrace_dead_letters_total", 1))
    await eventually(lambda: has("headrace_step", 5))
    await writer.publish(examples.rollout(run=writer.run, member=4))
    await eventually(lambda: has("headrace_rollouts_total", 2))
    stop.set()
    await running
    assert not await has("headrace_rollouts_total", 2)


async def test_port_zero_serves_nothing(sink: Bus) -> None:
    await run_metrics(sink, MetricsSettings(), asyncio.Event())
