"""The list of dependencies is complete: it has all that is imported, loaded, executed and connected to."""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pytest

from solo5_systemd.base.dependencies import DEPENDENCIES, DHCP_SERVER, Kind, advice, dependency_error
from solo5_systemd.base.errors import DependencyError
from solo5_systemd.cli.parser import VERBS

CHECKOUT = Path(__file__).parents[3]
SOURCE = CHECKOUT / "src" / "solo5_systemd"
FILES = [file for file in sorted(SOURCE.rglob("*.py")) if not file.stem.endswith("_pb2")]


ALWAYS = {"/bin/sh", "/bin/true", "/usr/bin/rm"}
"""Programs of every POSIX system."""

WHERE_USED = {"/usr/sbin/iptables-legacy-save"}
"""Programs that are executed where the host has rules of theirs: no dependencies."""

OURS = {"/usr/bin/python3", "/usr/bin/solo5ctl"}
"""Programs in units that are this package's, or run it."""

NO_SOCKETS = {
    "/run/systemd/generator",
    "/run/systemd/generator.early",
    "/run/systemd/generator.late",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/transient",
    "/run/systemd/units",
    "/run/systemd/dynamic-uid",
    "/run/systemd/resolve/resolv.conf",
}
"""Directories of PID 1's, and a file of systemd-resolved that need not exist."""


def named(kind: Kind) -> set[str]:
    return {each.name for each in (*DEPENDENCIES, DHCP_SERVER) if each.kind is kind}


@cache
def uses() -> tuple[Mapping[str, str], Collection[str]]:
    """Return the modules of other packages that are imported, each with a file, and all string constants."""
    modules, texts, own = dict[str, str](), set[str](), {*sys.stdlib_module_names, "solo5_systemd"}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import(names=names):
                    modules |= {alias.name: str(file) for alias in names}
                case ast.ImportFrom(module=str(module), level=0):
                    modules[module] = str(file)
                case ast.Constant(value=str(text)):
                    texts.add(text)
                case _:
                    pass
    return {module: file for module, file in modules.items() if module.partition(".")[0] not in own}, texts


def test_pyprojects_dependencies_are_the_modules() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[^A-Za-z0-9._-]", each)[0] for each in project["dependencies"]}
    assert required == {each.pip for each in DEPENDENCIES if each.kind is Kind.MODULE}


def test_debians_package_depends_on_all_that_is_not_essential() -> None:
    control = (CHECKOUT / "packaging" / "debian" / "control").read_text()
    depends = control.partition("\nDepends:\n")[2].partition("\nRecommends:")[0]
    packages = {line.split()[0].rstrip(",") for line in depends.splitlines() if not line.startswith(" ${")}
    essential = {"coreutils", "grep", "util-linux"}
    assert packages == {each.debian for each in DEPENDENCIES} - essential
    recommended = control.partition("\nRecommends:\n")[2].partition("\nSuggests:")[0]
    assert f" {DHCP_SERVER.debian}," in recommended.splitlines()


def test_every_module_that_is_imported_is_listed() -> None:
    modules = named(Kind.MODULE) | {each.preferred for each in DEPENDENCIES if each.preferred}
    found, _ = uses()
    strange = {each: file for each, file in found.items() if not any(f"{each}.".startswith(f"{m}.") for m in modules)}
    assert strange == {}
    assert {m for m in modules if not any(f"{each}.".startswith(f"{m}.") for each in found)} == set()


def test_every_library_that_is_loaded_is_listed() -> None:
    assert {text for text in uses()[1] if re.fullmatch(r"lib[A-Za-z0-9_+-]+\.so[.0-9]*", text)} == named(Kind.LIBRARY)


def test_every_path_of_a_program_in_the_code_is_listed_and_none_is_executed_by_its_name_alone() -> None:
    programs = {text for text in uses()[1] if re.fullmatch(r"(/usr)?/s?bin/[A-Za-z0-9._-]+", text)}
    assert programs - OURS - ALWAYS - WHERE_USED <= named(Kind.PROGRAM)
    executes = re.compile(
        r"\b(?:subprocess\.run|Popen|check_output|create_subprocess_exec|exec[vl]p?e?|posix_spawnp?)\(\s*\[?[\"'][^/\"']"
    )
    assert [file for file in FILES if executes.search(file.read_text())] == []


def test_every_program_of_a_unit_is_listed() -> None:
    commands = {
        program
        for unit in (CHECKOUT / "units").iterdir()
        for command in re.findall(r"^Exec(?:Start|Stop|Reload|Condition)\w*=(.+)$", unit.read_text(), re.MULTILINE)
        for program in (command.split()[0].lstrip("-+!:@"), *re.findall(r"(?:/usr)?/s?bin/[a-z0-9-]+", command))
    }
    assert "/usr/bin/busctl" in commands
    assert commands - OURS - ALWAYS <= named(Kind.PROGRAM)


def test_every_listed_program_is_executed() -> None:
    units = "".join(unit.read_text() for unit in (CHECKOUT / "units").iterdir())
    executed = {*uses()[1], *re.findall(r"[= ](/[^ ]+) ", units)}
    assert named(Kind.PROGRAM) - executed == set()


def test_every_socket_of_another_program_is_listed() -> None:
    paths = {text for text in uses()[1] if re.fullmatch(r"/run/(systemd|dbus)[A-Za-z0-9/._-]*", text)}
    assert paths - NO_SOCKETS == named(Kind.SOCKET)


@pytest.mark.parametrize(
    "error, sentence, hint",
    [
        (ModuleNotFoundError("No module named 'grpc'", name="grpc"), "Python module grpc", "python3-grpcio"),
        (ModuleNotFoundError("No module named 'google'", name="google"), "google.protobuf", "python3-protobuf"),
        (
            ImportError("cannot import name 'X' from 'dbus_next'", name="dbus_next"),
            "Python module dbus_next cannot be used: cannot import name 'X' from 'dbus_next'.",
            "python3-dbus-next",
        ),
        (ModuleNotFoundError("No module named 'pystemd.daemon'", name="pystemd.daemon"), "pystemd", "python3-pystemd"),
        (ImportError("libsystemd.so.0: cannot open shared object file", name=None), "libsystemd.so.0", "libsystemd0"),
        (OSError("libnftables.so.1: cannot open shared object file"), "library libnftables.so.1", "libnftables1"),
        (
            OSError("/usr/lib/libnftables.so.1: file too short"),
            "library libnftables.so.1 cannot be used: file too short.",
            "libnftables1",
        ),
        (
            ImportError("/x/_grpc.so: undefined symbol: f"),
            "library _grpc.so cannot be used: undefined symbol: f.",
            "--reinstall",
        ),
        (ModuleNotFoundError("No module named 'lxml'", name="lxml"), "Python module lxml", "--reinstall solo5-systemd"),
        (ImportError("libcares.so.2: cannot open shared object file"), "library libcares.so.2", "--reinstall"),
    ],
)
def test_failed_import_is_a_sentence(error: ImportError | OSError, sentence: str, hint: str) -> None:
    lacking = dependency_error(error)
    assert isinstance(lacking, DependencyError)
    assert sentence in lacking.sentence
    assert hint in lacking.hint


@pytest.mark.parametrize(
    "error",
    [
        OSError("[Errno 13] Permission denied"),
        ModuleNotFoundError("No module named 'solo5_systemd.nothing'", name="solo5_systemd.nothing"),
        ImportError("cannot import name 'x' from 'solo5_systemd.base.names'", name="solo5_systemd.base.names"),
        ImportError("attempted relative import"),
    ],
)
def test_fault_of_this_package_is_no_missing_dependency(error: ImportError | OSError) -> None:
    with pytest.raises(type(error)) as raised:
        dependency_error(error)
    assert raised.value is error


def test_program_that_is_not_listed_has_no_advice() -> None:
    assert advice("/usr/bin/true") == ""
    assert advice("/usr/bin/busctl") == "Install systemd (Debian)."


def test_manual_has_the_list_with_the_needs_of_every_verb() -> None:
    manual = (CHECKOUT / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^(\| (?:Python module|library|program|socket) .*\|) ([^|]+) \|$", manual, re.MULTILINE)
    assert [row for row, _ in rows] == [
        f"| {each.kind} | `{each.name}` | `{each.debian}` | {f'`{each.pip}`' if each.pip else '–'} |"
        for each in (*DEPENDENCIES, DHCP_SERVER)
    ]
    users = {user for _, cell in rows for user in re.findall(r"`([a-z]+)[ `]", cell)}
    assert users == set(VERBS) - {"disk"}
