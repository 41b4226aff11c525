"""A service whose module is missing for the whole machine: one sentence in the journal, and to the callers."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, eventually, ok, sh, systemctl, unit_property
from tests.machine.taken_away import paths

from solo5_systemd.base.dependencies import DEPENDENCIES, Dependency


@contextmanager
def emptied(module: str, nothing: Path) -> Iterator[Dependency]:
    """Leave a module's directory without files for the whole machine, as a package may that was removed."""
    [each] = [each for each in DEPENDENCIES if each.name == module]
    places = [str(place) for place in paths(each) if place.exists()]
    for place in places:
        ok("mount", "--bind", str(nothing), place)
    try:
        yield each
    finally:
        for place in places:
            ok("umount", place)


def written(service: str, since: str) -> list[str]:
    """The lines of a service's own processes."""
    unit = f"{service}.service"
    ok("journalctl", "--sync")
    matches = (f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout")
    return ok("journalctl", "--quiet", "--output=cat", f"--since={since}", *matches).splitlines()


@pytest.mark.timeout(300)
def test_network_service_without_a_module_is_explained_and_left_alone(machine: Machine, tmp_path: Path) -> None:
    machine.expect(".")  # its failure is PID 1's warning
    systemctl("stop", "solo5-networkd.service")
    since = f"@{time.time():.6f}"
    with emptied("pyroute2", tmp_path) as each:
        refused = sh("/usr/bin/solo5ctl", "network", "ls")
        [why] = written("solo5-networkd", since)
        assert why.startswith("Python module pyroute2 cannot be used: cannot import name ")  # its directory is there
        assert why.endswith(each.advice)
        sentence = f"solo5-networkd cannot start: {why}\n`journalctl -u solo5-networkd` shows it.\n"
        assert (refused.returncode, refused.stderr) == (125, f"solo5ctl: {sentence}")
        eventually(lambda: unit_property("solo5-networkd.service", "ActiveState") == "failed", "it has failed")
        assert unit_property("solo5-networkd.service", "ExecMainStatus") == "78"
        assert unit_property("solo5-networkd.service", "NRestarts") == "0"
        refused = sh("/usr/bin/solo5ctl", "run", "--rm", str(GUESTS / "net.spt"))
        assert (refused.returncode, refused.stderr) == (125, f"solo5ctl: {sentence}")
        facts = json.loads(sh("/usr/bin/solo5ctl", "doctor", "--json").stdout)
        assert [fact["advice"] for fact in facts if fact["name"] == "Python module pyroute2"] == [each.advice]
        ok("/usr/bin/solo5ctl", "run", "--rm", str(GUESTS / "hello.spt"))
    # The bus still waits for the start that failed, and has every call wait with it, for 25 seconds.
    ok("systemctl", "start", "solo5-networkd.service")
    ok("/usr/bin/solo5ctl", "network", "ls")


@pytest.mark.timeout(300)
def test_relay_without_a_module_is_explained_and_left_alone(machine: Machine, tmp_path: Path) -> None:
    machine.expect(".")
    systemctl("stop", "solo5-relay.service")
    since = f"@{time.time():.6f}"
    with emptied("dbus_next", tmp_path) as each:
        assert sh("systemctl", "start", "solo5-relay.service").returncode == 1
        assert written("solo5-relay", since) == [str(each.missing())]
        assert unit_property("solo5-relay.service", "ExecMainStatus") == "78"
        assert unit_property("solo5-relay.service", "NRestarts") == "0"
    ok("systemctl", "start", "solo5-relay.service")
