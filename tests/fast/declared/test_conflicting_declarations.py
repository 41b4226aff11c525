"""Two files that are in order, and whose tasks cannot run at the same time."""

import pytest

from solo5_systemd.declared.declaration import Declaration, conflicts, parse_declaration
from solo5_systemd.declared.syntax import HostNames, Source


def declared(name: str, lines: str) -> Declaration:
    source = Source(path=f"/etc/solo5/{name}.unikernel", content=f"[Unikernel]\nImage=/a\n{lines}\n".encode())
    return parse_declaration(name, [source], host=HostNames())


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ("Publish=80:80", "Publish=80:8080", "published port 0.0.0.0:80/tcp"),
        ("Publish=192.0.2.1:80:80", "Publish=80:8080", "published port 192.0.2.1:80/tcp"),
        ("Publish=79-81:79-81", "Publish=192.0.2.1:80:80", "published port 0.0.0.0:80/tcp"),
        ("Publish=[::]:80:80", "Publish=[2001:db8::1]:80:80", "published port :::80/tcp"),
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
    [sentence] = conflicts([declared("web", one), declared("other@1", other)])
    assert sentence == (
        f"{what} is in /etc/solo5/web.unikernel and in /etc/solo5/other@1.unikernel: only one of both tasks can run at "
        "a time."
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Publish=80:80", "Publish=80:80/udp"),
        ("Publish=80:80", "Publish=81:80"),
        ("Publish=192.0.2.1:80:80", "Publish=192.0.2.2:80:80"),
        ("Publish=[::]:80:80", "Publish=192.0.2.2:80:80"),
        ("Network=a=lan,ip=10.0.0.2", "Network=a=lan2,ip=10.0.0.2"),
        ("Network=a=lan", "Network=a=lan"),
    ],
)
def test_what_differs_is_no_conflict(one: str, other: str) -> None:
    assert list(conflicts([declared("web", one), declared("other", other)])) == []
    assert list(conflicts([declared("web", "Publish=192.0.2.1:80:80\nPublish=192.0.2.2:80:80")])) == []
