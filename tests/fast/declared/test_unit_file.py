"""The unit file of a declaration: text of systemd.syntax(7), with the sandbox of every task."""

from typing import Any

from solo5_systemd.base.names import MARK, WAITING, DeviceName, Target, TaskName, user_of
from solo5_systemd.declared.declaration import Declaration, parse_declaration
from solo5_systemd.declared.syntax import Source, split_words
from solo5_systemd.declared.unit_file import awaited, environment, parts_of, refusal, socket, unit_file
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.unit.tender import Parts, Tender

MANIFEST = Manifest(target=Target.HVT, nics=(DeviceName("service"),), disks=())
TENDER = Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2, loads=("/lib/x.so",))


def parts(declaration: Declaration, **others: Any) -> Parts:
    host: dict[str, Any] = {"tender": TENDER, "groups": ("kvm",), "systemd": 257, "manifest": MANIFEST}
    return parts_of(declaration, **host | others)


def declared(text: str, name: str = "web") -> Declaration:
    content = f"[Unikernel]\nImage=/srv/web.hvt\n{text}".encode()
    return parse_declaration(name, [Source(path=f"/etc/solo5/{name}.unikernel", content=content)])


def unit(text: str = "", **others: Any) -> list[str]:
    found = declared(text)
    return unit_file(found, parts(found, **others)).splitlines()


def words(key: str, found: list[str]) -> list[str]:
    """The words of a key's lines, without quotes."""
    values = (line.removeprefix(f"{key}=") for line in found if line.startswith(f"{key}="))
    return [word for value in values for word in split_words(value)]


def test_it_begins_with_a_mark_and_names_its_source_and_its_preparation() -> None:
    found = unit()
    assert found[0].startswith(f"{MARK} from /etc/solo5/web.unikernel,")
    assert "SourcePath=/etc/solo5/web.unikernel" in found
    assert "/srv/web.hvt" in words("RequiresMountsFor", found)
    assert "Wants=solo5-prepare@web.service solo5-outcome-declared@web.target" in found
    assert "After=solo5-prepare@web.service" in found
    assert "AssertPathExists=/run/solo5/declared/web/environment" in found, "it starts only when that has succeeded"


def test_the_command_has_what_a_start_determines_in_two_variables() -> None:
    found = unit("Argument=first {mirage} --name=$HOME\n")
    [command] = [line for line in found if line.startswith("ExecStart=")]
    assert command == (
        "ExecStart=/usr/bin/solo5-hvt $SOLO5_DEVICES -- /var/lib/solo5/images/unikernel $SOLO5_ARGUMENTS"
    )


def test_the_sandbox_is_written_as_a_unit_file_demands() -> None:
    found = unit("Block=data=/dev/disk/by-label/a\\x20b%%\nBlock=log=disk:log\nMemory=64M\nCPUs=0.5\n")
    assert f"User={user_of(TaskName('web'))}" in found
    assert "MemoryMax=64M" in found
    assert "CPUQuota=50%" in found
    assert "RestrictNamespaces=uts" in found
    image = "/run/solo5/declared/web/image:/var/lib/solo5/images/unikernel:norbind"
    assert {"/usr/bin/solo5-hvt:/usr/bin/solo5-hvt:norbind", image} <= {*words("BindReadOnlyPaths", found)}
    assert "/run/solo5/declared/web/disks/data:/run/solo5-disks/data:norbind" in words("BindPaths", found)
    assert "DeviceAllow=/dev/kvm rw" in found
    assert "DeviceAllow=/dev/net/tun rw" in found
    assert r'DeviceAllow="/dev/disk/by-label/a\\x20b%%" rw' in found
    assert not any("disks/log rw" in line for line in found)
    assert "SOLO5_IMAGE=/srv/web.hvt" in words("LogExtraFields", found)
    assert not any("SHA256" in line for line in found)
    assert "StandardError=truncate:/run/solo5/declared/web/tender/stderr" in found


def test_fields_have_nothing_that_only_a_start_determines() -> None:
    found = unit("Argument={dns} {search} {hosts} {hostname}\nAddHost=db:192.0.2.7 up:host-gateway\n")
    names = {word.partition("=")[0] for word in words("LogExtraFields", found)}
    assert names == {"SOLO5_TASK", "SOLO5_IMAGE", "SOLO5_TENDER", "SOLO5_MEMORY", "SOLO5_HOSTNAME"}


def test_a_start_and_a_reload_have_the_timeouts_of_pid_1_unless_they_need_more() -> None:
    assert not any(line.startswith("TimeoutStartSec=") for line in unit())
    assert "TimeoutStartSec=5min" in unit("[Service]\nTimeoutStartSec=5min\n")
    limits = [line for line in unit("Timeout=2min\n") if line.startswith("TimeoutStart")]
    assert limits == ["TimeoutStartSec=130"]
    assert not any(line.startswith("TimeoutStart") for line in unit("Timeout=80s\n"))


def test_other_sections_come_last_so_that_they_have_precedence() -> None:
    found = unit(
        "[Unit]\nDescription=The web site\nAfter=x.target\n[Service]\nRestart=always\n[Install]\nWantedBy=a.target\n"
    )
    assert [line for line in found if line.startswith("Description=")] == ["Description=The web site"]
    assert found.index("After=x.target") < found.index("[Service]")
    assert found.index("Restart=always") > found.index("Type=exec")
    assert found[-2:] == ["[Install]", "WantedBy=a.target"]


def test_the_preparation_waits_for_what_the_task_waits_for() -> None:
    found = declared("Block=data=/srv/data.img\n[Unit]\nAfter=network-online.target\nOnFailure=x.service\n")
    text = awaited(found, parts(found))
    assert "After=network-online.target" in text
    assert {"/srv/data.img", "/usr/bin/solo5-hvt"} <= {*words("RequiresMountsFor", text.splitlines())}
    assert "OnFailure" not in text


def test_specifiers_of_what_a_preparation_waits_for_are_those_of_the_task() -> None:
    lines = "[Unit]\nAfter=%p.target db-%j@%i.service %H.target\nWants=%N.socket a%%b.service\n"
    found = declared(lines, "a-web")
    text = awaited(found, parts(found))
    assert "After=a-web.target db-web@.service %H.target\n" in text
    assert "Wants=a-web.socket a%%b.service\n" in text


def test_a_refused_file_is_a_unit_whose_section_has_the_reason() -> None:
    text = refusal("/etc/solo5/web.unikernel", '/etc/solo5/web.unikernel:3: it\'s "[bad]" at 50%\\.')
    assert "[/etc/solo5/web.unikernel:3: it’s ”(bad)” at 50%/.]" in text.splitlines()
    assert 'Description=/etc/solo5/web.unikernel:3: it\'s "[bad]" at 50%%\\.\n' in text
    assert 'it\'s \\"[bad]\\" at 50%%\\\\.' in text


def test_the_environment_keeps_every_character() -> None:
    assert environment(["--mem=4", "--x"], ['a "b" \\ $c `d`', ""]) == (
        'SOLO5_DEVICES="--mem=4 --x"\nSOLO5_ARGUMENTS="\\"a \\\\\\"b\\\\\\" \\\\\\\\ \\$c \\`d\\`\\" \\"\\""\n'
    )


def test_a_user_has_a_name_that_systemd_takes() -> None:
    name = user_of(TaskName("x" * 128))
    assert len(name) <= 31
    assert name != user_of(TaskName("x" * 127))


WAITS = "IdleSec=5min\nIdleAction=stop\n"
INSTALL = "[Install]\nWantedBy=multi-user.target\nAlso=other.service\n"


def test_a_task_that_waits_without_a_process_has_its_socket_enabled_in_its_place() -> None:
    found = unit(WAITS + INSTALL)
    assert "web.socket" in words("Wants", found[: found.index("[Service]")]), "a start has it wait afterwards"
    assert found[-2:] == ["[Install]", "Also=web.socket"]
    assert unit(WAITS)[-2:] == ["[Install]", "Also=web.socket"]
    for others in ("", "IdleSec=5min\n", "IdleSec=5min\nIdleAction=sleep\n"):
        assert not any("web.socket" in line for line in unit(others + INSTALL))


def test_a_boot_loads_no_outcome_target_of_a_task_that_waits() -> None:
    assert words("Wants", unit(WAITS)) == ["solo5-prepare@web.service", "web.socket"]
    assert words("Wants", unit("IdleSec=5min\n")) == ["solo5-prepare@web.service", "solo5-outcome-declared@web.target"]


def test_the_socket_of_a_task_is_a_fifo_of_root_that_ends_with_a_stop_of_the_task() -> None:
    content = f"[Unikernel]\nImage=/srv/web.hvt\n{WAITS}{INSTALL}".encode()
    source = Source(path="/etc/solo5/50% é.unikernel", content=content)
    found = socket(parse_declaration("web", [source])).splitlines()
    assert found[0].startswith(f"{MARK} from /etc/solo5/50% é.unikernel,")
    begin_socket, begin_install = found.index("[Socket]"), found.index("[Install]")
    of_unit, of_socket, of_install = found[:begin_socket], found[begin_socket:begin_install], found[begin_install:]
    assert "PartOf=web.service" in of_unit
    assert "Upholds=solo5-networkd.service" in of_unit
    assert "SourcePath=/etc/solo5/50%% é.unikernel" in of_unit
    assert f"ListenFIFO={WAITING}/web" in of_socket
    assert {"SocketMode=0600", "DirectoryMode=0700", "RemoveOnStop=yes"} < set(of_socket)
    assert of_install == ["[Install]", "WantedBy=multi-user.target", "Also=other.service"]
