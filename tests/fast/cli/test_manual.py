"""The manual pages document every option, JSON key, outcome, exit status and setting."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.cli.test_stats import BEFORE, FULL
from tests.support.fakes.tasks import LEASE, PORTS, ended, running
from tests.tables import options, parsers

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.cli import task_output
from solo5_systemd.cli.verbs.stats import usage_json
from solo5_systemd.network.model import Reservation
from solo5_systemd.settings.network_keys import keys_on
from solo5_systemd.settings.network_policy import LAN, NetworkPolicy, NetworkTraits
from solo5_systemd.settings.records import entries
from solo5_systemd.settings.resolver import ntp_servers, resolver
from solo5_systemd.task.placeholders import mirage, placeholders
from solo5_systemd.unit.outcome import Ending

RESOLVER = replace(resolver(["9.9.9.9"], ["lan"]), ntp=ntp_servers(["192.0.2.123"]))
MAN = Path(__file__).parents[3] / "docs" / "man"
PARSERS = dict(parsers())
EVERYWHERE = {"-h", "--help", "--no-color", "--json"}
VERBS = [words for words in PARSERS if words not in ("", "network", "disk")]


def names(verb: str) -> set[str]:
    return {name for option in options(PARSERS[verb]) for name in option.option_strings}


def source(page: str) -> str:
    return (MAN / page).read_text().replace("\\-", "-")


def section(verb: str) -> str:
    text = source("solo5ctl.1")
    start = re.search(rf'^\.SS "{re.escape(verb)}[ "]', text, re.MULTILINE)
    assert start, f"solo5ctl(1) has no section on {verb}"
    return re.split(r"^\.S[SH]", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def tagged(text: str) -> set[str]:
    """Return the options that have a tagged paragraph."""
    tags = re.findall(r"^\.TP\n(.*)$", text, re.MULTILINE)
    return {option for tag in tags for option in re.findall(r"(?<![\w-])--?[A-Za-z][a-z-]*", tag)}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_its_section_with_exactly_its_options(verb: str) -> None:
    assert tagged(section(verb)) - EVERYWHERE == names(verb) - EVERYWHERE


def test_options_of_every_verb_are_documented_once() -> None:
    text = source("solo5ctl.1")
    general = text[text.index("\n.SH OPTIONS") : text.index("\n.SH VERBS")]
    assert tagged(general) == EVERYWHERE | names("")


def test_every_placeholder_is_named() -> None:
    text = re.sub(r"\\f[A-Z]", "", section("run")).replace("NIC", "service")
    names = {**placeholders(TaskName("web"), 64, [LEASE], ports=PORTS, resolver=RESOLVER), **mirage([LEASE])}
    text = text.replace("PORT", "80").replace("80/udp", "53/udp")
    assert [name for name in names if f"{{{name}}}" not in text] == []


def keys(value: object) -> set[str]:
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() for key in keys(each)}
    return set()


def test_every_json_key_of_a_task_is_documented() -> None:
    text = source("solo5ctl.1").partition('.SH "JSON OUTPUT"')[2]
    documents = [
        task_output.task_json(running(networked=True)),
        task_output.task_json(ended()),
        task_output.reservation_json(Reservation(task=TaskName("web"), leases=(LEASE,), ports=PORTS)),
        {each.name: None for each in (*entries(NetworkTraits), *entries(NetworkPolicy))},  # of a network
    ]
    assert [key for key in keys(documents) if not re.search(rf"\b{key}\b", text)] == []
    assert [key for key in keys(usage_json("web", BEFORE, FULL)) if not re.search(rf"\b{key}\b", text)] == []
    text = source("solo5.toml.5").partition('.SS "[network.NAME] on an existing bridge"')[2]
    assert [key for key in keys_on(LAN) if not re.search(rf"\b{key}\b", text)] == []


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_is_documented(ending: Ending) -> None:
    assert ending.value in source("solo5ctl.1")
    word = task_output.ending_word(ending)
    titles = re.findall(r"^\.TP\n(.*)$", source("solo5-systemd.7"), re.MULTILINE)
    assert word in {title for line in titles for title in line.split(", ")}


def test_every_exit_status_of_an_error_is_documented() -> None:
    text = source("solo5ctl.1").partition('.SH "EXIT STATUS"')[2]
    statuses = {error.exit_status for error in (Solo5Error, *Solo5Error.__subclasses__())}
    assert [status for status in statuses if f".B {status}\n" not in text] == []


@pytest.mark.parametrize("page", sorted(page.name for page in MAN.iterdir()))
def test_a_page_has_its_sections(page: str) -> None:
    text = source(page)
    assert text.startswith(".TH ")
    assert '\n.SH "WHAT CAN GO WRONG"\n' in text
    assert '\n.SH "SEE ALSO"\n' in text


@pytest.mark.parametrize("page", sorted(page.name for page in MAN.iterdir()))
def test_a_page_names_units_that_exist(page: str) -> None:
    named = set(re.findall(r"\b(solo5-[a-z-]+@)[A-Z]+\.([a-z]+)", source(page)))
    units = MAN.parents[1] / "units"
    assert [name for name, kind in named if not (units / f"{name}.{kind}").exists()] == []


@pytest.mark.parametrize("page", sorted(page.name for page in MAN.iterdir()))
def test_a_macro_begins_its_line(page: str) -> None:
    assert re.findall(r"^.*\S \.(?:TP|PP|[BIR]{1,2}) .*$", source(page), re.MULTILINE) == []
