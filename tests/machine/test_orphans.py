"""What belongs to nobody: told by doctor, taken away by gc, and nothing else with it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import Machine, Runner, eventually, inspect, ok, registered, says, sh, unit_property

LEASES = Path("/run/solo5/network/tasks")
LOST = "solo5-task-lost.service"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """Where an agent keeps its allocations."""
    (tmp_path / "alloc").mkdir()
    return tmp_path / "alloc"


@pytest.fixture
def lost(machine: Machine, agent: Path) -> Iterator[Path]:
    """A task of an allocation whose directory is returned, which is there."""
    (agent / "3fa85f64").mkdir()
    field = f"--property=LogExtraFields=NOMAD_ALLOC_DIR={agent}/3fa85f64/alloc"
    wants = "--property=Wants=solo5-outcome@lost.target"
    ok("systemd-run", "--quiet", f"--unit={LOST}", wants, field, "sleep", "infinity")
    yield agent / "3fa85f64"
    sh("systemctl", "stop", LOST, "solo5-outcome@lost.target")


def orphans() -> list[str]:
    return [fact["value"] for fact in json.loads(sh("solo5ctl", "doctor", "--json").stdout) if fact["name"] == "orphan"]


def is_active(unit: str) -> bool:
    return sh("systemctl", "is-active", "--quiet", unit).returncode == 0


def test_a_task_runs_until_its_allocation_is_removed(lost: Path, agent: Path, run: Runner) -> None:
    another = run("sleeper.spt")
    assert orphans() == []
    ok("solo5ctl", "gc")
    away = agent.rename(agent.with_name("unmounted"))  # an agent's whole directory that is away is no proof
    assert orphans() == []
    ok("solo5ctl", "gc")
    assert is_active(LOST)
    away.rename(agent)
    lost.rmdir()
    assert orphans() == ["task lost"]
    told = f"task lost: Nomad has removed its allocation ({lost})"
    assert told in ok("solo5ctl", "gc", "--dry-run").splitlines()
    assert is_active(LOST)
    assert told in ok("solo5ctl", "gc").splitlines()
    assert not is_active(LOST)
    assert not is_active("solo5-outcome@lost.target")
    assert orphans() == []
    assert inspect(another)["phase"] == "running"


def test_an_outcome_without_its_unit_is_removed(machine: Machine) -> None:
    ok("systemctl", "start", "solo5-outcome@lost.target")
    assert orphans() == ["outcome of task lost"]
    ok("solo5ctl", "gc")
    assert unit_property("solo5-outcome@lost.target", "ActiveState") == "inactive"


def test_a_user_without_its_unit_is_freed(machine: Machine, run: Runner) -> None:
    """What a driver leaves that was killed between the allocation of a user and the start of the unit."""
    name = run("sleeper.spt")
    number = registered()[name].split()[0]
    record = Path(f"/run/userdb/{number}.user")
    assert ok("getent", "passwd", number).startswith(f"solo5-{number}:x:{number}:{number}:Solo5 task {name}:")
    assert unit_property(f"solo5-task-{name}.service", "User") == number
    ok("systemctl", "stop", f"solo5-task-{name}.service")
    assert orphans() == [], "an ended service can be started again"
    ok("systemctl", "stop", f"solo5-outcome@{name}.target")
    assert orphans() == [f"user of task {name}"]
    assert f"user of task {name}: its unit is not loaded" in ok("solo5ctl", "gc").splitlines()
    assert (orphans(), name in registered(), record.exists()) == ([], False, False)


def test_a_lease_without_its_unit_is_reported_while_the_network_service_is_inactive(
    machine: Machine, run: Runner
) -> None:
    machine.expect("tap .* is restored")
    name = run("net.spt", "--ipv4={net.service.ipv4_cidr}")
    says(name, "02:")
    lease = (LEASES / f"{name}.json").read_text().replace(f'"{name}"', '"lost"')
    ok("solo5ctl", "rm", "--force", name)
    ok("systemctl", "stop", "solo5-networkd")
    LEASES.mkdir(parents=True, exist_ok=True)
    (LEASES / "lost.json").write_text(json.dumps(json.loads(lease) | {"expires": 0}))
    assert orphans() == ["network lease of task lost"]
    assert not is_active("solo5-networkd")
    ok("solo5ctl", "gc")
    assert orphans() == []
    assert not (LEASES / "lost.json").exists()


def test_tender_killed_gives_everything_back(run: Runner) -> None:
    name = run("net.hvt", "--ipv4={net.service.ipv4_cidr}", options=("-p", "8080:80"))
    says(name, "02:")
    tap = inspect(name)["nics"][0]["tap"]
    ok("kill", "-KILL", str(inspect(name)["pid"]))
    eventually(lambda: sh("ip", "link", "show", tap).returncode != 0, "the tap is gone, with nobody of ours asked")
    assert "8080" not in ok("nft", "list", "ruleset")
