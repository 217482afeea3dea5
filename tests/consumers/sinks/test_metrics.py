from __future__ import annotations

import asyncio
import socket
import urllib.request
from http.client import HTTPResponse
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bus import Bus, EmbeddedServer, connect
from bus.settings import LogSettings, WeightsSettings
from consumers.sinks import MetricsSettings, run_metrics
from consumers.sinks.figures import Figures
from consumers.sinks.metrics import FiguresCollector, served
from schemas import ConfigError, encode
from tests import examples
from tests.logs import logged
from tests.raw_publisher import publish_raw
from tests.real_server import free_ports
from tests.waiting import eventually


@pytest.fixture
def collector() -> FiguresCollector:
    collector = FiguresCollector(Figures("demo"))
    collector.take("ROLLOUTS", logged(examples.rollout()))
    return collector


def scraped_text(port: int) -> str:
    response: HTTPResponse
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        return response.read().decode()


def scraped(port: int) -> dict[str, float]:
    families = text_string_to_metric_families(scraped_text(port))
    return {sample.name: sample.value for family in families for sample in family.samples}


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


async def test_poison_is_counted_and_stops_no_figures(server: EmbeddedServer, writer: Bus, sink: Bus) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    for end in ("task.reverse", "rollout.reverse", "step", "metric.sink.x", "dead.TASKS"):
        for payload in (b"noise", encode(examples.rollout(run="other"))):
            await publish_raw(server.address("admin"), f"hr.{writer.run}.{end}", payload, b"Status: 100\r\n")
    await writer.publish(examples.rollout(run=writer.run))
    stop = asyncio.Event()
    running = asyncio.create_task(run_metrics(sink, MetricsSettings(port=port), stop))

    async def counted() -> bool:
        try:
            text = await asyncio.to_thread(scraped_text, port)
        except OSError:
            return False
        invalid = [line for line in text.splitlines() if line.startswith("headrace_log_invalid_total")]
        return (
            len(invalid) == 5 and all(line.endswith(" 2.0") for line in invalid) and "headrace_rollouts_total" in text
        )

    await eventually(counted)
    stop.set()
    await running


async def test_no_port_is_said_with_its_remedy(sink: Bus) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.port is 0, which serves nothing: give a port"):
        await run_metrics(sink, MetricsSettings(), asyncio.Event())


async def test_all_that_is_counted_may_be_read_where_permissions_are_for_one_run(tmp_path: Path) -> None:
    """Those for every run cannot tell one stream from another."""
    server = EmbeddedServer.start(tmp_path, run="one")
    try:
        admin, sink = [await connect(server.address(role), run="one", role=role, id="x") for role in ("admin", "sink")]
        await admin.apply_topology(LogSettings(max_gib=0.1), WeightsSettings())
        for event in examples.every_event():
            await admin.publish(msgspec.structs.replace(event, run="one"))
        stop = asyncio.Event()
        stop.set()
        await run_metrics(sink, MetricsSettings(port=free_ports(1)[0]), stop)
        await admin.close()
        await sink.close()
    finally:
        server.stop()
