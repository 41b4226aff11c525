"""`metrics`: both formats, parsed by the client library of Prometheus."""

import stat
from dataclasses import replace
from pathlib import Path

import prometheus_client.openmetrics.parser as openmetrics_parser
import prometheus_client.parser as prometheus_parser
import pytest
from prometheus_client.metrics_core import Metric
from tests.fast.cli.conftest import Solo5ctl
from tests.fast.cli.test_stats import FULL, UNKNOWN, USAGE
from tests.support.fakes.engine import FakeRuntime
from tests.support.fakes.tasks import NETWORK, STARTED, endpoints, running

from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.cli.metric_families import Family, exposition, families
from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.settings.network_policy import Join

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
NOMAD = {
    "NOMAD_NAMESPACE": "default",
    "NOMAD_JOB_NAME": 'a "quoted"\\job\n',
    "NOMAD_GROUP_NAME": "edge",
    "NOMAD_TASK_NAME": "unikernel",
    "NOMAD_ALLOC_ID": "3fa85f64",
}
UNUSED = replace(NETWORK, name=NetworkName("unused"), ipv4=None, gateway4=None, up=False, leases=0, free=None)
WEB, IDLE = TaskName("web"), TaskName("idle")


@pytest.fixture
def engine() -> FakeRuntime:
    web = running("web", networked=True)
    web = web._replace(state=web.state._replace(log_fields={**web.state.log_fields, **NOMAD}))
    engine = FakeRuntime(web, running("idle"))
    full = USAGE._replace(pressure={**(USAGE.pressure or {})})
    engine.rounds = iter([{IDLE: UNKNOWN, WEB: FULL._replace(usage=full)}])
    engine.machine.networks.overview = (NETWORK, UNUSED)
    return engine


def parsed(text: str) -> dict[str, Metric]:
    return {each.name: each for each in openmetrics_parser.text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


def parsed_file(text: str) -> dict[str, Metric]:
    return {each.name: each for each in prometheus_parser.text_string_to_metric_families(text)}


def value(metric: Metric, **labels: str) -> float:
    (only,) = [sample.value for sample in metric.samples if labels.items() <= sample.labels.items()]
    return only


@pytest.fixture
def found(solo5ctl: Solo5ctl) -> dict[str, Metric]:
    return parsed(solo5ctl("metrics").out)


def test_openmetrics_has_types_units_and_labels(found: dict[str, Metric]) -> None:
    rss = found["solo5_task_memory_rss_bytes"]
    assert (rss.type, rss.unit, value(rss, task="web")) == ("gauge", "bytes", 8 << 20)
    cpu = found["solo5_task_cpu_seconds"]
    assert (cpu.type, cpu.unit) == ("counter", "seconds")
    assert (value(cpu, task="web", mode="user"), value(cpu, task="web", mode="system")) == (2.0, 0.5)
    received = found["solo5_task_network_receive_bytes"]
    assert value(received, task="web", nic="management") == 1024
    assert value(found["solo5_task_block_read_bytes"], task="web", device="vda") == 4096
    assert value(found["solo5_task_pressure_waiting_seconds"], task="web", resource="memory") == 9e-6
    assert value(found["solo5_tasks"], phase="running") == 2
    assert value(found["solo5_tasks"], phase="frozen") == 0
    assert value(found["solo5_task_start_time_seconds"], task="idle") == 1_700_000_000


def test_labels_of_a_task_are_in_one_series(found: dict[str, Metric]) -> None:
    labels = {sample.labels["task"]: sample.labels for sample in found["solo5_task_info"].samples}
    assert labels["web"] == {
        "task": "web",
        "unit": "solo5-task-web.service",
        "image": "web.hvt",
        "image_sha256": "5" * 64,
        "tender": "hvt",
        "nomad_namespace": "default",
        "nomad_job": 'a "quoted"\\job\n',
        "nomad_group": "edge",
        "nomad_task": "unikernel",
        "nomad_alloc_id": "3fa85f64",
    }
    assert "nomad_job" not in labels["idle"]
    (nic,) = found["solo5_task_nic_info"].samples
    assert nic.labels | {"task": "web", "nic": "service", "network": "default", "ipv4": "10.89.0.2"} == nic.labels


def test_a_network_without_a_range_has_no_series(found: dict[str, Metric]) -> None:
    assert value(found["solo5_network_free_addresses"], network="default") == 252
    assert [sample.labels["network"] for sample in found["solo5_network_leases"].samples] == ["default"]


def test_a_joined_network_has_free_addresses_where_it_has_a_pool() -> None:
    lan = replace(NETWORK, name=NetworkName("lan"), ipv4=None, gateway4=None, free=None, join=Join())
    by_name = {family.name: family for family in families([], {}, {}, [lan])}
    labels = {"network": "lan"}
    assert [*by_name["solo5_network_leases"].values] == [(labels, 1)]
    assert [*by_name["solo5_network_up"].values] == [(labels, 1)]
    assert [*by_name["solo5_network_free_addresses"].values] == []


def test_unknown_values_are_absent(found: dict[str, Metric]) -> None:
    of_idle = {name for name, metric in found.items() for sample in metric.samples if sample.labels.get("task") == IDLE}
    assert of_idle == {"solo5_task_info", "solo5_task_start_time_seconds"}


@pytest.mark.parametrize("root, networked", [(False, True), (True, False)])
def test_the_network_service_is_called_only_by_root_and_with_a_lease(
    solo5ctl: Solo5ctl, *, root: bool, networked: bool
) -> None:
    solo5ctl.engine.known = {WEB: running("web", networked=networked)}
    shown = solo5ctl("metrics", root=root)
    assert (shown.status, "solo5_network_" in shown.out) == (0, False)


def test_a_machine_without_tasks_has_metrics(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.known, solo5ctl.engine.rounds = {}, iter(())
    text = solo5ctl("metrics").out
    assert parsed(text).keys() == {"solo5_build_info", "solo5_tasks"}
    assert text.endswith("\n# EOF\n")
    held = running(networked=True).reservation
    assert held is not None
    solo5ctl.engine.dormant = [LeaseRecord(reservation=held, state=LeaseState.WAITING, expires=0, asleep=STARTED)]
    solo5ctl.engine.rounds = iter([{}])
    found = parsed(solo5ctl("metrics").out)
    assert (value(found["solo5_task_dormant"], task="web"), value(found["solo5_network_up"])) == (1, 1)


def test_a_textfile_is_in_the_prometheus_format_with_the_same_values(solo5ctl: Solo5ctl, tmp_path: Path) -> None:
    """Its TYPE lines of counters have `_total`, and it has neither the type `info` nor UNIT."""
    path = tmp_path / "solo5.prom"
    done = solo5ctl("metrics", "--textfile", str(path))
    assert (done.status, done.out, stat.S_IMODE(path.stat().st_mode)) == (0, "", 0o644)
    assert "/no' cannot be used" in solo5ctl("metrics", "--textfile", str(tmp_path / "no/solo5.prom")).err
    text = path.read_text()
    assert "# TYPE solo5_task_cpu_seconds_total counter\n" in text
    assert "UNIT" not in text
    assert "EOF" not in text
    metrics = parsed_file(text)
    assert {metric.type for metric in metrics.values()} == {"counter", "gauge"}
    assert value(metrics["solo5_task_cpu_seconds"], task="web", mode="user") == 2.0


def test_help_and_labels_are_escaped_for_each_format() -> None:
    odd = 'a "b" \\ c\nd'
    family = Family(name="x", kind="gauge", help=odd, values=[({"label": f"{odd}\udcff", "empty": ""}, 1)])
    new, old = parsed(exposition([family]))["x"], parsed_file(exposition([family], for_file=True))["x"]
    assert (new.documentation, old.documentation) == (odd, odd)
    assert new.samples[0].labels == old.samples[0].labels == {"label": f"{odd}?"}


def test_every_metric_is_documented() -> None:
    documented = DOCUMENT.read_text()
    web = running(networked=True)
    assert web.reservation is not None
    names = {
        f"{family.name}_total" if family.kind == "counter" else family.name
        for family in families([web], {WEB: endpoints(web.reservation)}, {WEB: FULL}, [NETWORK])
    }
    assert [name for name in sorted(names) if f"`{name}`" not in documented] == []
