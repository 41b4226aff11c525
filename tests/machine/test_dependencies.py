"""Each runtime dependency taken away in turn: what is left works, and the rest names what to install.

The cases are made from `dependencies.DEPENDENCIES` and the tenders. They run beside each other, in mount namespaces of
their own; a test waits for its own case.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, eventually, left_as_found, ok, sh, systemctl, unit_property
from tests.machine.plugin import Answer, fingerprinted
from tests.machine.taken_away import packages, paths, run_without
from tests.support.doc_tables import DOCS

from solo5_systemd.base.dependencies import DEPENDENCIES, Dependency, Kind
from solo5_systemd.base.names import Target
from solo5_systemd.nomad.fingerprint import HEALTHY, UNDETECTED, UNHEALTHY

TENDERS = {target: Path(f"/usr/local/bin/solo5-{target}") for target in Target}
SCENE = Path("/srv/dependencies")
CONFIG = {"enabled": True, "allow_missing_controllers": True}
TRAVERSED, STOPPED, KILLED, STAYING = "dep-traversed", "dep-stopped", "dep-killed", "dep-staying"

COMMANDS = {
    "run": ("run", "--rm", f"{SCENE}/run.spt"),
    "run --detach": ("run", "--detach", "--name", "dep-detached", f"{SCENE}/detached.spt"),
    "run --scope": ("run", "--scope", "--name", "dep-scope", f"{SCENE}/scope.spt"),
    "run --dry-run": ("run", "--dry-run", f"{SCENE}/dry.spt"),
    "image": ("image", f"{SCENE}/run.spt"),
    "ps": ("ps",),
    "ps --all": ("ps", "--all"),
    "inspect": ("inspect", TRAVERSED),
    "export": ("export", TRAVERSED),
    "logs": ("logs", TRAVERSED),
    "stats": ("stats", "--no-stream", TRAVERSED),
    "metrics": ("metrics",),
    "network": ("network", "ls"),
    "gc": ("gc", "--dry-run"),
    "freeze": ("freeze", TRAVERSED),
    "thaw": ("thaw", TRAVERSED),
    "stop": ("stop", STOPPED),
    "wait": ("wait", STOPPED),
    "rm": ("rm", STOPPED),
    "kill": ("kill", KILLED),
}
"""What is typed. None of the images is in the store yet."""

NEEDED_BY = {
    name: {user.strip("`") for user in cell.split(", ")} | ({*COMMANDS} - {"image"} if "every verb" in cell else set())
    for name, cell in re.findall(
        r"^\|[^|]+\| `([^`]+)` \|.*\| ([^|]+) \|$", (DOCS / "dependencies.md").read_text(), re.MULTILINE
    )
}
"""The commands, programs and units that fail without a dependency, as the manual has it."""

STORIES = (("logs", "freeze", "thaw"), ("stop", "wait", "rm"))
"""Commands that follow each other; every other one stands alone."""

LACKING = [
    (command, each)
    for each in DEPENDENCIES
    for needs in ([command for command in COMMANDS if command in NEEDED_BY[each.name]],)
    for command in dict.fromkeys((*needs[:1], *needs[-1:]))
]
"""The first and the last command that need it."""

OF_THE_DRIVER = (
    *("grpc", "google.protobuf", "msgpack", "pyroute2", "libnftables.so.1"),
    *("/usr/bin/busctl", "/run/dbus/system_bus_socket"),
)
"""The modules of the plugin itself, and one dependency of each kind."""

DRIVER = [each for each in DEPENDENCIES if each.name in OF_THE_DRIVER]
SERVICES = {"solo5-networkd": "solo5_systemd.networkd", "solo5-relay": "solo5_systemd.relay"}
OF_SERVICES = [(service, each) for each in DEPENDENCIES for service in SERVICES if service in NEEDED_BY[each.name]]

Done = subprocess.CompletedProcess[str]


class Cases:
    """All of them, begun at once."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        stories = [*STORIES, *([each] for each in COMMANDS if not any(each in story for story in STORIES))]
        everything = {file for each in DEPENDENCIES for file in paths(each)} | set(TENDERS.values())
        self.doctor = pool.submit(run_without, everything, "solo5ctl", "doctor", "--json", timeout=120)
        self.of_a_tender = pool.submit(run_without, {TENDERS[Target.HVT]}, "solo5ctl", "doctor", "--json", timeout=120)
        self.plugins = {each.name: pool.submit(fingerprinted, paths(each), CONFIG) for each in DRIVER}
        self.plugins |= {file.name: pool.submit(fingerprinted, {file}, CONFIG) for file in TENDERS.values()}
        self.plugins["tenders"] = pool.submit(fingerprinted, set(TENDERS.values()), CONFIG)
        self.working: dict[str, Future[dict[str, Done]]] = {}
        for story in stories:
            self.working |= dict.fromkeys(story, pool.submit(_story, story))
        self.lacking = {(command, each.name): pool.submit(_lacking, command, each) for command, each in LACKING}
        self.services = {(service, each.name): pool.submit(_service, service, each) for service, each in OF_SERVICES}


def _story(commands: Sequence[str]) -> dict[str, Done]:
    """Run each without all that it does not need."""
    return {each: run_without(_unneeded(each), "solo5ctl", *COMMANDS[each], timeout=120) for each in commands}


def _unneeded(command: str) -> set[Path]:
    tenders = {TENDERS[Target.HVT]} if command.startswith(("run", "image")) else set(TENDERS.values())
    users = {command, "solo5-networkd"} if command == "network" else {command}  # whose service answers it
    return {file for each in DEPENDENCIES if users.isdisjoint(NEEDED_BY[each.name]) for file in paths(each)} | tenders


def _lacking(command: str, each: Dependency) -> Done:
    """Run it without one that it needs: on a task of which nothing is changed."""
    number = LACKING.index((command, each))
    words = [
        f"dep-{number}" if "--name" in COMMANDS[command] and word.startswith("dep-") else word
        for word in COMMANDS[command]
    ]
    words = [STAYING if word in (TRAVERSED, STOPPED, KILLED) else word for word in words]
    if words[-1].startswith(str(SCENE)):
        words[-1] = _image(f"lacking-{number}", "hello.spt")
    return run_without(paths(each), "solo5ctl", *words, timeout=120)


def _image(name: str, guest: str) -> str:
    """An image that the store does not have: a guest's, with bytes behind all of its segments."""
    image = SCENE / f"{name}.spt"
    image.write_bytes((GUESTS / guest).read_bytes() + name.encode())
    return str(image)


def _service(service: str, each: Dependency) -> Done:
    return run_without(paths(each), "/usr/bin/python3", "-I", "-m", SERVICES[service], timeout=120)


REFUSED = (
    "Python module pyroute2 |solo5-networkd.service: Failed with result 'exit-code'|"
    "Failed to start solo5-networkd.service "
)
"""The lines of a service without a module, and PID 1's about it; it is started so while the cases are there."""


@pytest.fixture(scope="module")
def cases(booted: None) -> Iterator[Cases]:
    with left_as_found() as subject:
        subject.expect(REFUSED)
        # The services run outside of the namespaces, and have what they need.
        SCENE.mkdir()
        for name in ("run", "scope", "dry"):
            _image(name, "hello.spt")
        _image("detached", "sleeper.spt")
        for name in (TRAVERSED, STOPPED, KILLED, STAYING):
            ok("solo5ctl", "run", "--detach", "--name", name, str(GUESTS / "sleeper.spt"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            yield Cases(pool)
        sh("solo5ctl", "rm", "--force", TRAVERSED, KILLED, STAYING, "dep-detached")
        ok("solo5ctl", "gc")  # the user of a scope that has ended
        shutil.rmtree(SCENE)


def test_debian_package_has_each(booted: None) -> None:
    assert [each for each in DEPENDENCIES if each.debian not in packages(each)] == []


@pytest.mark.timeout(600)
def test_doctor_needs_none_of_them_and_names_each_that_is_missing(cases: Cases) -> None:
    done = cases.doctor.result()
    assert (done.returncode, done.stderr) == (1, "")
    facts = json.loads(done.stdout)
    for each in DEPENDENCIES:
        expected = {
            "name": f"{each.kind} {each.name}",
            "value": "missing",
            "verdict": "broken",
            "advice": each.advice,
        }
        assert [fact for fact in facts if fact["name"] == expected["name"]] == [expected]
    found = {fact["name"]: fact for fact in facts}
    assert [found[file.name]["verdict"] for file in TENDERS.values()] == ["broken", "broken"]


@pytest.mark.timeout(600)
def test_doctor_names_a_missing_tender(cases: Cases) -> None:
    done = cases.of_a_tender.result()
    assert done.stderr == ""
    [fact] = [fact for fact in json.loads(done.stdout) if fact["name"] == "solo5-hvt"]
    assert (fact["value"], fact["verdict"]) == ("not found", "limited")
    assert "/usr/local/bin" in fact["advice"]
    assert "opam install solo5" in fact["advice"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_works_without_all_that_it_does_not_need(cases: Cases, command: str) -> None:
    done = cases.working[command].result()[command]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout or command in ("gc",)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command, each", LACKING, ids=lambda value: getattr(value, "name", value))
def test_command_names_what_it_lacks_in_one_sentence(cases: Cases, command: str, each: Dependency) -> None:
    done = cases.lacking[command, each.name].result()
    in_scope = command == "run --scope" and each.debian == "util-linux"
    assert done.returncode == (127 if in_scope else 125), done.stderr
    sentence, *advice = done.stderr.splitlines()
    of_unshare = in_scope and each.name == "/usr/bin/setpriv"  # which executes it
    assert sentence.startswith("unshare: " if of_unshare else "solo5ctl: ")
    assert each.name in sentence
    assert advice == ([] if of_unshare else [each.advice])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("each", DRIVER, ids=lambda each: each.name)
def test_fingerprint_names_a_missing_dependency(cases: Cases, each: Dependency) -> None:
    answer = cases.plugins[each.name].result()
    if each.name in ("grpc", "google.protobuf"):
        assert_speechless(answer, each)
    else:
        assert answer.health == (UNDETECTED if each.name == "msgpack" else UNHEALTHY)
        assert each.name in answer.description
        assert answer.description.endswith(each.advice)
        assert [line for line in answer.logged if "traceback" in line] == []


def assert_speechless(answer: Answer, each: Dependency) -> None:
    """Without these there is no handshake: the log has the sentence, at a level that Nomad shows."""
    assert (answer.handshake, answer.status) == ("", 1)
    [line] = answer.logged
    assert line["@level"] == "error"
    assert line["@message"] == str(each.missing())


@pytest.mark.timeout(600)
def test_fingerprint_names_missing_tenders(cases: Cases) -> None:
    for target, file in TENDERS.items():
        answer = cases.plugins[file.name].result()
        assert answer.health == HEALTHY
        assert "opam install solo5" in answer.attributes[f"driver.solo5.{target}.problem"]
    answer = cases.plugins["tenders"].result()
    assert answer.health == UNHEALTHY
    assert answer.description.startswith("solo5-hvt: not found.")
    assert "opam install solo5" in answer.description


@pytest.mark.timeout(600)
@pytest.mark.parametrize("service, each", OF_SERVICES, ids=lambda value: getattr(value, "name", value))
def test_service_ends_with_one_sentence(cases: Cases, service: str, each: Dependency) -> None:
    done = cases.services[service, each.name].result()
    # A socket can come back by itself, and systemd starts the service again.
    assert (done.returncode, done.stdout) == (1 if each.kind is Kind.SOCKET else 78, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("<3>")
    assert each.name in line
    assert line.endswith(each.advice)


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


def written(since: str) -> list[str]:
    """The lines of solo5-networkd's own processes."""
    ok("journalctl", "--sync")
    matches = ("_SYSTEMD_UNIT=solo5-networkd.service", "_TRANSPORT=stdout")
    return ok("journalctl", "--quiet", "--output=cat", f"--since={since}", *matches).splitlines()


@pytest.mark.timeout(300)
def test_network_service_without_a_module_is_explained_and_left_alone(machine: Machine, tmp_path: Path) -> None:
    machine.expect(REFUSED)
    systemctl("stop", "solo5-networkd.service")
    since = f"@{time.time():.6f}"
    with emptied("pyroute2", tmp_path) as each:
        refused = sh("/usr/bin/solo5ctl", "network", "ls")
        [why] = written(since)
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
