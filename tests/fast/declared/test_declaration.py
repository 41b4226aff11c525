"""Declarations: what their keys mean, what is refused, and in which line."""

from ipaddress import IPv4Address

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.declared.declaration import Declaration, conflicts, parse_declaration
from solo5_systemd.declared.syntax import Source
from solo5_systemd.declared.unit_keys import SECTIONS
from solo5_systemd.declared.update_request import ReadyLine, ReadyPort, UpdateRequest
from solo5_systemd.network.model import Protocol
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.settings import KEYS
from solo5_systemd.task.workload import Workload

PATH = "/etc/solo5/web.unikernel"
HOST = {"H": "h"}
SITE = """\
[Unit]
Description=The web site
After=network-online.target
[Unikernel]
Image=/srv/unikernels/web.hvt
Memory=64M
Publish=443:443
Argument={mirage}
Block=data=disk:web,size=64M
[Service]
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""


def declared(text: str, *drop_ins: str, name: str = "web", served: tuple[str, ...] = ()) -> Declaration:
    sources = [Source(path=PATH, content=text.encode())]
    sources += [Source(path=f"{PATH}.d/{n}.conf", content=each.encode()) for n, each in enumerate(drop_ins)]
    return parse_declaration(name, sources, host=HOST, served=[NetworkName(each) for each in served])


def task(lines: str, *drop_ins: str, name: str = "web") -> Workload:
    return declared(f"[Unikernel]\nImage=/a.hvt\n{lines}", *drop_ins, name=name).workload


def test_a_declaration_is_a_task_and_lines_for_systemd() -> None:
    found = declared(SITE)
    assert (found.workload.name, found.path) == ("web", PATH)
    [disk] = found.workload.disks
    assert (disk.disk, disk.name, disk.create) == ("data", "web", 64 << 20)
    assert [(str(each), each.line) for each in found.unit] == [
        ("Description=The web site", 2),
        ("After=network-online.target", 3),
    ]
    assert [str(each) for each in found.service] == ["Restart=on-failure"]
    assert [str(each) for each in found.install] == ["WantedBy=multi-user.target"]
    assert found.update == UpdateRequest(ready=None, timeout=20.0, drain=60.0, watch=10.0)


def test_each_key_is_in_the_task() -> None:
    found = declared(
        """[Unikernel]
Image=/srv/./a b/../web.hvt
Argument="--name=a b" {dns} {search} {ntp} {hostname} {hosts}
Argument=last
Tender=spt
Memory=64M
MemoryMax=infinity
CPUs=1.5
CPUWeight=50
Network=service=lab,ip=10.1.2.3
Network=management=admin
NetworkNamespace=web
Publish=8000-8001:80-81
Publish=[::1]:53:53/udp
Egress=10.0.0.0/8:443/tcp 10.1.1.1
Egress=management=none
Rate=sent=10M received=1M management=sent=1M
DNS=9.9.9.9 149.112.112.112
DNSSearch=example.org
NTP=192.0.2.123 2001:db8::123
HostName=www
AddHost=db:192.0.2.7 up:host-gateway
IdleSec=5min
Block=data=/srv/a, b.img,ro
Block=files=files:/etc/a,/etc/b
Label=TEAM=web "NOTE=a b"
LogField=OTHER=1
Ready=console:^listening on .*
Timeout=40
Drain=1min
Watch=5m
[Service]
TasksMax=32
IOReadBandwidthMax=/dev/sda 1M
IOReadBandwidthMax=/dev/sdb 2M
CPUQuotaPeriodSec=50ms
"""
    )
    workload = found.workload
    assert workload.image == "/srv/web.hvt"
    assert workload.arguments == ("--name=a b", "{dns}", "{search}", "{ntp}", "{hostname}", "{hosts}", "last")
    assert (workload.tender, workload.memory_max, workload.cpus, workload.cpu_weight) == ("spt", INFINITY, 1.5, 50)
    assert [(nic.nic, nic.network, nic.ipv4) for nic in workload.nics] == [
        ("service", "lab", IPv4Address("10.1.2.3")),
        ("management", "admin", None),
    ]
    assert [str(each) for each in workload.limits.egress or ()] == ["10.0.0.0/8:443/tcp", "10.1.1.1"]
    assert workload.nics[1].limits.egress == ()
    assert (workload.limits.rate.sent, workload.nics[1].limits.rate.sent) == (10_000_000, 1_000_000)
    assert workload.nics[0].limits.egress is None
    assert (workload.idle_s, workload.idle_stops) == (300, False)
    assert workload.namespace == "/run/netns/web"
    assert [(port.host_port, port.port) for port in workload.publish] == [(8000, 80), (8001, 81), (53, 53)]
    assert [str(each) for each in workload.resolver.servers] == ["9.9.9.9", "149.112.112.112"]
    assert (workload.resolver.search, workload.hostname) == (("example.org",), "www")
    assert [*map(str, workload.hosts)] == ["db:192.0.2.7", "up:host-gateway"]
    assert (workload.disks[0].path, workload.disks[0].private) == ("/srv/a, b.img", True)
    assert workload.disks[1].archive is not None
    assert [path for _, path in workload.disks[1].archive.members] == ["/etc/a", "/etc/b"]
    assert workload.log_fields == (("TEAM", "web"), ("NOTE", "a b"), ("OTHER", "1"))
    ready = ReadyLine(pattern="^listening on .*")
    assert found.update == UpdateRequest(ready=ready, timeout=40.0, drain=60.0, watch=300.0)
    assert workload.properties == (
        ("TasksMax", "32"),
        ("IOReadBandwidthMax", "/dev/sda 1M"),
        ("IOReadBandwidthMax", "/dev/sdb 2M"),
        ("CPUQuotaPeriodSec", "50ms"),
    )
    assert found.service == ()


def test_defaults_are_those_of_run() -> None:
    assert task("") == Workload(name=TaskName("web"), image="/a.hvt")


def test_a_drop_in_overrides_single_values_adds_to_lists_and_resets() -> None:
    found = task("Memory=64M\nArgument=a\nPublish=1:1", "[Unikernel]\nMemory=32M\nArgument=b\nPublish=\nPublish=2:2")
    assert (found.memory, found.arguments) == (32 << 20, ("a", "b"))
    assert [port.host_port for port in found.publish] == [2]
    assert task("Memory=64M\nMemory=").memory == 128 << 20
    assert task("Memory=64M\nMemory=\nMemory=32M").memory == 32 << 20


def test_lines_for_systemd_are_those_that_count() -> None:
    """systemd ignores `Restart=` and `After=` without a value, so what they reset does not reach it."""
    found = declared(
        SITE,
        "[Unit]\nAfter=\nAfter=a.target\nDescription=Other\nConditionPathExists=/a\n[Service]\nRestart=no\n[Install]",
        "[Unit]\nAfter=b.target\nConditionHost=\n[Service]\nRestart=\n[Install]\nWantedBy=",
    )
    assert [str(each) for each in found.unit] == [
        *("After=a.target", "Description=Other", "ConditionPathExists=/a", "After=b.target", "ConditionHost=")
    ]
    assert (found.service, found.install) == ((), ())


def test_a_setting_that_an_older_systemd_would_ignore_is_refused() -> None:
    source = Source(path=PATH, content=b"[Unikernel]\nImage=/a\n[Service]\nRestartSteps=3")
    assert parse_declaration("web", [source], host=HOST, systemd=254).service
    with pytest.raises(SettingsError, match=":4: RestartSteps= needs systemd 254: expected it left out with 252"):
        parse_declaration("web", [source], host=HOST, systemd=252)


def test_an_instance_has_its_own_values() -> None:
    text = "[Unikernel]\nImage=/srv/%p.hvt\nArgument=--n=%i\nBlock=data=disk:%p-%i\n[Service]\nSlice=solo5-%p.slice"
    found = declared(f"{text}\nTasksMax=9\nCPUQuota=50%\n[Install]\nDefaultInstance=1", name="web@2")
    assert found.workload.name == "web@2"
    assert (found.workload.image, found.workload.arguments) == ("/srv/web.hvt", ("--n=2",))
    assert found.workload.disks[0].name == "web-2"
    assert found.workload.properties == (("Slice", "solo5-web.slice"), ("TasksMax", "9"), ("CPUQuota", "50%"))


def test_a_default_instance_is_the_name_of_one() -> None:
    with pytest.raises(
        SettingsError, match=r":4: DefaultInstance=a/b is not a value that systemd takes: expected the name"
    ):
        task("[Install]\nDefaultInstance=a/b", name="web@1")


def test_an_expanded_value_is_one_argument() -> None:
    assert task('Argument="%i x" %I', name="web@a-b").arguments == ("a-b x", "a/b")


@pytest.mark.parametrize("name", ["web", "web@1", "a.b_c-d@x.y_z-1"])
def test_a_declaration_names_its_task(name: str) -> None:
    assert task("", name=name).name == name


@pytest.mark.parametrize(
    "name", ["", "@1", "-a", "a b", "web@", "web@a/b", "web@a@b", r"web@a\x2d", "web@" + "1" * 125]
)
def test_a_name_that_no_unit_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected"):
        task("", name=name)


@pytest.mark.parametrize(
    ("lines", "where", "sentence"),
    [
        ("Memroy=64M", 3, "Memroy= is not a known setting of [Unikernel]: expected Memory, the nearest one."),
        ("memory=64M", 3, "memory= is not a known setting of [Unikernel]: expected Memory, the nearest one."),
        ("Zzzzzz=1", 3, "Zzzzzz= is not a known setting of [Unikernel]: expected one of AddHost, Argument, Block,"),
        ("Restart=no", 3, "Restart= is in [Unikernel]: expected it in [Service]."),
        ("[Service]\nImage=/b", 4, "Image= is in [Service]: expected it in [Unikernel]."),
        ("[Service]\nStartLimitBurst=3", 4, "StartLimitBurst= is in [Service]: expected it in [Unit]."),
        (
            "[Service]\nRestrat=no",
            4,
            "Restrat= is not a known setting of [Service]: expected Restart, the nearest one.",
        ),
        ("[Unit]\nZzzz=no", 4, "Zzzz= is not a known setting of [Unit]: expected one that solo5.unikernel(5) permits."),
        ("[Container]\nImage=a", 4, "[Container] is not a section of a declaration: expected one of Install, Service,"),
        ("[Instal]\nAlso=a", 4, "[Instal] is not a section of a declaration: expected Install, the nearest one."),
        ("Memory=1M\nMemory=2M", 4, "Memory= is given twice, before in line 3: expected it once in a file."),
        ("[Service]\nRestart=no\nRestart=always", 5, "Restart= is given twice"),
        ("Memory=64X", 3, "Memory= '64X' is not a size"),
        ("Memory=64M\nMemoryMax=32M", 4, "MemoryMax= '32M' is less than the task's memory"),
        ("Network=a=b\nNetwork=a=c", 4, "NIC a is given twice"),
        ("Publish=1:1\nPublish=1:2", 4, "published port 0.0.0.0:1/tcp is given twice"),
        ("Egress=none 10.0.0.1", 3, ""),
        ("Egress=other=none", 3, "Egress= 'other=none' is for NIC other, which no Network= names"),
        ("DNS=9.9.9.9", 3, "DNS= has no effect: expected {dns} in an argument of the guest, or a network "),
        ("IdleAction=stop", 3, "IdleAction= has no effect: expected an idle time as well."),
        (
            "IdleSec=9\nIdleAction=stop\n[Service]\nRestart=always",
            4,
            "IdleAction=stop is of no use with Restart=always",
        ),
        ("IdleSec=9\nIdleAction=stop\n[Service]\nRestart=on-success", 4, "IdleAction=stop is of no use with Restart="),
        ("Block=a=b", 3, "Block= 'a=b' is a relative path"),
        ('Argument="a', 3, 'Argument="a has the quote " without its end'),
        ("Argument=%u", 3, "Argument=%u has the unknown specifier '%u'"),
        (
            "Argument=%i",
            3,
            "Argument=%i has the specifier %i, which is empty here: expected an instance of a template.",
        ),
        ("Ready=tcp", 3, "Ready= 'tcp' is not a condition"),
        ("Ready=console:", 3, "Ready= 'console:' has no usable pattern"),
        ("Timeout=soon", 3, "Timeout= 'soon' is not a time: expected a time span"),
        ("Watch=2d", 3, "Watch= '2d' is too long: expected at most 1d."),
        ("CPUWeight=5\n[Service]\nCPUWeight=6", 5, "CPUWeight= is set in [Service], and CPUWeight= in [Unikernel]"),
        ("[Service]\nTasksMax=many", 4, "unit property TasksMax=many: expected a whole number"),
        ("[Service]\nRestart=maybe", 4, "Restart=maybe is not a value that systemd takes: expected one of no,"),
        ("[Service]\nSuccessExitStatus=256", 4, "SuccessExitStatus=256 is not a value"),
        ("[Unit]\nAfter=network", 4, "After=network is not a value"),
        ("[Unit]\nDefaultDependencies=maybe", 4, "DefaultDependencies=maybe is not a value"),
        ("[Install]\nDefaultInstance=1", 4, "DefaultInstance= is of templates"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_line(lines: str, where: int, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        task(lines)
    assert caught.value.sentence.startswith(f"{PATH}:{where}: {sentence}")
    assert caught.value.sentence.count(PATH) == 1
    assert "expected" in caught.value.sentence


@pytest.mark.parametrize(
    "line",
    """ExecStart=/bin/sh ExecStartPre=/bin/sh ExecStop=/bin/sh ExecReload=/bin/sh Type=simple User=root Group=root
    DynamicUser=no RootDirectory=/ RootImage=/a BindPaths=/ StandardOutput=file:/a TTYPath=/dev/tty1 PrivateDevices=no
    ProtectSystem=no NoNewPrivileges=no CapabilityBoundingSet=CAP_SYS_ADMIN AmbientCapabilities=CAP_SYS_ADMIN
    DeviceAllow=/dev/sda DevicePolicy=auto Environment=A=B EnvironmentFile=/a RestrictNamespaces=no KillMode=none
    IPAddressAllow=any NetworkNamespacePath=/a LoadCredential=a:/b MemoryMax=1G Delegate=yes LogNamespace=a
    WatchdogSec=1 TimeoutSec=1 Sockets=a.socket WorkingDirectory=/ RemainAfterExit=yes
    LogExtraFields=A=B CPUShares=1 CPUAffinity=1
    [Unit]JoinsNamespaceOf=a.service [Unit]RefuseManualStop=yes [Unit]SourcePath=/a [Unit]CollectMode=inactive
    """.split(),
)
def test_what_would_break_the_sandbox_or_gets_in_the_way_is_refused_with_a_reason(line: str) -> None:
    section = "Unit" if line.startswith("[Unit]") else "Service"
    with pytest.raises(SettingsError, match=r":4: [A-Za-z]+= is (not permitted: |in \[Service\]: expected it in )"):
        task(f"[{section}]\n{line.removeprefix('[Unit]')}")


def test_a_file_of_the_largest_size_takes_a_moment() -> None:
    """Not the square of its lines."""
    assert len(task("Argument=a\n" * 30_000).arguments) == 30_000


def test_an_image_is_required_also_after_a_reset() -> None:
    for text in ("[Unikernel]\nMemory=1M", "[Unikernel]\nImage=/a\nImage=", ""):
        with pytest.raises(SettingsError, match=f"{PATH}: Image= is missing"):
            declared(text)
    with pytest.raises(SettingsError, match=":2: Image= 'a.hvt' is a relative path"):
        declared("[Unikernel]\nImage=a.hvt")


def test_names_of_units_may_be_quoted_as_systemd_has_them() -> None:
    lines = "[Unit]\nAfter='a.target' b.target\n[Install]\nWantedBy=\"multi-user.target\""
    assert [str(each) for each in declared(SITE, lines).install][-1:] == ['WantedBy="multi-user.target"']
    with pytest.raises(SettingsError, match="expected names of units"):
        declared(SITE, '[Install]\nWantedBy="a.target b.target"')


def test_an_error_in_a_drop_in_names_it() -> None:
    with pytest.raises(SettingsError, match=rf"{PATH}\.d/0\.conf:2: CPUs= 'x'"):
        declared(SITE, "[Unikernel]\nCPUs=x")


def test_a_name_server_needs_a_placeholder_or_dhcp() -> None:
    text = "[Unikernel]\nImage=/a\nDNS=9.9.9.9\nNetwork=service=lab"
    assert declared(text, served=("lab",)).workload.resolver.servers
    with pytest.raises(SettingsError, match=":3: DNS= has no effect"):
        declared(text, served=("default",))


def test_what_systemd_reads_is_passed_on() -> None:
    found = declared(
        "[Unikernel]\nImage=/a\n[Unit]\nConditionPathExists=/a\nOnFailure=a@%n.service b.target"
        "\nStartLimitIntervalSec=1h"
        "\nStopWhenUnneeded=yes\n[Service]\nRestartSec=infinity\nSuccessExitStatus=64 SIGKILL DATAERR\nRestartSteps=3"
    )
    assert len(found.unit) == 4
    assert len(found.service) == 3


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        ("tcp:443", ReadyPort(protocol=Protocol.TCP, port=443)),
        ("udp:53", ReadyPort(protocol=Protocol.UDP, port=53)),
        ("console:a:b", ReadyLine(pattern="a:b")),
    ],
)
def test_readiness_is_a_port_or_a_line_and_reads_as_it_was_written(text: str, ready: object) -> None:
    found = declared(f"[Unikernel]\nImage=/a\nReady={text}").update.ready
    assert found == ready
    assert str(found) == text


def test_every_key_has_a_form_and_is_known() -> None:
    assert all(key.form for key in KEYS.values())
    assert set(KEYS) == SECTIONS["Unikernel"]


LINES = st.lists(
    st.one_of(
        st.sampled_from(SITE.splitlines()),
        st.builds(
            lambda key, value: f"{key}={value}",
            st.sampled_from(sorted(name for names in SECTIONS.values() for name in names)),
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
        ),
    ),
    max_size=20,
)


@settings(max_examples=50)
@example(SITE.splitlines())
@given(LINES)
def test_any_lines_are_a_declaration_or_one_sentence_with_the_file(lines: list[str]) -> None:
    try:
        found = declared("\n".join(lines))
    except SettingsError as error:
        assert error.sentence.startswith(PATH)  # noqa: PT017 - either is right
        assert error.sentence.count(PATH) == 1  # noqa: PT017
    else:
        assert found.workload.image.startswith("/")


def file_of(name: str, lines: str) -> Declaration:
    source = Source(path=f"/etc/solo5/{name}.unikernel", content=f"[Unikernel]\nImage=/a\n{lines}\n".encode())
    return parse_declaration(name, [source])


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ("Publish=79-81:79-81", "Publish=192.0.2.1:80:80", "published port 0.0.0.0:80/tcp"),
        ("Network=a=lan,ip=10.0.0.2", "Network=b=lan,ip=10.0.0.2", "address 10.0.0.2 of network lan"),
        ("Network=a=lan,ip6=fd00::2", "Network=b=lan,ip6=fd00::2", "address fd00::2 of network lan"),
        (
            "Network=a=lan,mac=02:00:00:00:00:01",
            "Network=b=lan,mac=02:00:00:00:00:01",
            "MAC address 02:00:00:00:00:01 of network lan",
        ),
    ],
)
def test_what_two_files_share_is_named_with_both(one: str, other: str, what: str) -> None:
    [sentence] = conflicts([file_of("web", one), file_of("other@1", other)])
    assert sentence == (
        f"{what} is in /etc/solo5/web.unikernel and in /etc/solo5/other@1.unikernel: only one of both tasks can run at "
        "a time."
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Publish=80:80", "Publish=80:80/udp"),
        ("Publish=80:80", "Publish=81:80"),
        ("Publish=[::]:80:80", "Publish=192.0.2.2:80:80"),
        ("Network=a=lan,ip=10.0.0.2", "Network=a=lan2,ip=10.0.0.2"),
        ("Network=a=lan", "Network=a=lan"),
    ],
)
def test_what_differs_is_no_conflict(one: str, other: str) -> None:
    assert list(conflicts([file_of("web", one), file_of("other", other)])) == []
    assert list(conflicts([file_of("web", "Publish=192.0.2.1:80:80\nPublish=192.0.2.2:80:80")])) == []
