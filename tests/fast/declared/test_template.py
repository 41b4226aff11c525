"""One unit file for all instances of a template: with `%i` wherever the unit of an instance would have its name."""

import re

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.fast.declared.test_unit_file import parts

from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.base.names import is_task_name
from solo5_systemd.declared.declaration import Declaration, parse_declaration
from solo5_systemd.declared.syntax import Source, expand, specifiers
from solo5_systemd.declared.template import image_pattern, parse_template
from solo5_systemd.declared.unit_file import awaited, unit_file

NAMES = {"H": "host.example"}
ALL = """\
[Unit]
Description=Site %i of %p on %H
After=db@%i.service
[Unikernel]
Image=/srv/%I/%i-50%%.hvt
Argument={mirage} --name=%n %f --host={hostname}
Memory=64M
Network=service=lan,ip=10.0.0.%i
Publish=80%i:80
NetworkNamespace=ns-%i
HostName=web-%i
Block=data=disk:web-%i
Block=log=/srv/%f/%i.img,read_bps=1M
Block=dev=/dev/vg/web-%i
Label="SITE=%i of %N" PART=%I
[Service]
Slice=solo5-%i.slice
CPUQuota=50%
[Install]
WantedBy=%i.target
"""
INSTANCES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True).filter(
    lambda text: is_task_name(f"web@{text}") and not text.endswith("-") and "--" not in text
)


def sources(text: str, path: str = "/etc/solo5/web@.unikernel") -> list[Source]:
    return [Source(path=path, content=text.encode())]


def template(text: str, name: str = "web@") -> Declaration:
    return parse_template(name, sources(text), host=NAMES)


def unit(text: str) -> str:
    found = template(text)
    return found.text(unit_file(found, parts(found)))


def of_instance(text: str, instance: str) -> str:
    found = parse_declaration(f"web@{instance}", sources(text), host=NAMES)
    return unit_file(found, parts(found))


@settings(max_examples=50)
@given(INSTANCES)
def test_systemd_makes_the_unit_of_each_instance_of_it(instance: str) -> None:
    text = re.sub("(Network|Publish)=.*\n", "", ALL)  # they are read at a start, and have no place in the unit file

    def filled_in(unit_file: str) -> str:
        text = unit_file.replace("CPUQuota=50%\n", "")  # has no specifiers
        return expand(text, specifiers(f"web@{instance}", NAMES))

    assert filled_in(unit(ALL)) == filled_in(of_instance(text, instance))


@given(st.text(alphabet="%iIabi0123456789", max_size=30))
def test_no_text_of_the_files_is_taken_for_the_instance(text: str) -> None:
    line = f"[Unikernel]\nImage=/srv/{text}x.hvt\n"
    try:
        of_one = of_instance(line, "one")
    except SettingsError:
        reject()
    assert expand(unit(line), specifiers("web@one", NAMES)) == expand(of_one, specifiers("web@one", NAMES))


def test_what_an_instance_waits_for_is_before_its_preparation() -> None:
    found = template("[Unit]\nAfter=db@%i.service %p.target %N.socket\nRequires=a@%I.mount\nConflicts=x.target\n" + ALL)
    lines = found.text(awaited(found, parts(found))).splitlines()
    assert "Before=solo5-prepare@web@%i.service" in lines
    assert "After=db@%i.service web.target web@%i.socket" in lines
    assert "Requires=a@%I.mount" in lines
    assert any(line.startswith("RequiresMountsFor=") and '"/srv/%I/%i-50%%.hvt"' in line for line in lines)
    assert not any("Conflicts" in line for line in lines)


def test_an_instance_does_not_wait_without_a_process() -> None:
    with pytest.raises(
        SettingsError, match="IdleAction=stop is not for a template or an instance: expected it in a file"
    ):
        template("[Unikernel]\nImage=/a.hvt\nIdleSec=1min\nIdleAction=stop\n")


@pytest.mark.parametrize("line", ["Memory=%iM", "CPUs=%i", "Tender=%i", "Block=data=/a,read_bps=%iM", "MemoryMax=%iM"])
def test_a_unit_file_cannot_have_numbers_that_differ(line: str) -> None:
    line = line.replace("CPUs=%i", "CPUs=1.%i")
    default = "[Install]\nDefaultInstance=hvt\n" if "Tender" in line else "[Install]\nDefaultInstance=200\n"
    with pytest.raises(SettingsError, match=r"^/etc/solo5/web@.unikernel:3: .*%i") as caught:
        template(f"[Unikernel]\nImage=/a.hvt\n{line}\n{default}")
    assert "write a file for each instance, web@1.unikernel" in caught.value.hint


@pytest.mark.parametrize(
    ("lines", "instance"),
    [("Publish=80%i:80", "1"), ("Network=a=b,ip=%i", "10.0.0.1"), ("Network=a%i=b", "a"), ("Ready=%i:1", "udp")],
)
def test_a_line_is_read_for_an_instance_that_it_may_have(lines: str, instance: str) -> None:
    text = f"[Unikernel]\nImage=/a.hvt\n{lines}\n"
    found = template(f"{text}[Install]\nDefaultInstance={instance}\n")
    assert found.text(found.workload.name) == "web@%i"
    if instance in ("1", "a"):
        assert template(text).path == found.path
    else:
        with pytest.raises(SettingsError, match=":3: ") as caught:
            template(text)
        assert "set DefaultInstance= in [Install]" in caught.value.hint


def test_an_error_of_every_instance_is_that_of_the_line() -> None:
    with pytest.raises(SettingsError, match=r"web@.unikernel:3: Memry= .* expected Memory") as caught:
        template("[Unikernel]\nImage=/a.hvt\nMemry=1M\n")
    assert not caught.value.hint


@pytest.mark.parametrize(("name", "sentence"), [("a" * 101 + "@", "too long for a template"), ("a b@", "not usable")])
def test_the_name_of_a_template_is_bounded(name: str, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        template("[Unikernel]\nImage=/a.hvt\n", name)


def test_the_images_of_all_instances_are_found_by_a_pattern() -> None:
    found = template("[Unikernel]\nImage=/srv/[x]*?/%i/%I.hvt\n")
    assert image_pattern(found) == "/srv/[[]x][*][?]/*/*.hvt"
