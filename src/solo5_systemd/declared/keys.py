"""The keys of [Unikernel]: each option of `solo5ctl run` that describes a task, and those for updates.

The manual page solo5.unikernel(5) has a paragraph for each; a fast test compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SECTION = "Unikernel"


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of [Unikernel].

    Attributes:
        name: as it is written.
        form: of its value.
        option: of `solo5ctl run`, which takes the same value; empty: there is none.
        is_list: it may be repeated, and an empty assignment resets it; otherwise once in a file, where the last file
            wins, and an empty assignment restores the default.
        has_words: one assignment may have several values, separated by blanks and quoted as in systemd.syntax(7);
            otherwise the value is all of the line, without quotes.
        at_start: it is read again at each start, and no part of the unit file: it may differ in any way between the
            instances of a template.
    """

    name: str
    form: str
    option: str = ""
    is_list: bool = False
    has_words: bool = False
    at_start: bool = False


def _words(name: str, form: str, option: str = "", *, at_start: bool = False) -> Key:
    return Key(name=name, form=form, option=option, is_list=True, has_words=True, at_start=at_start)


KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        # What runs
        Key(name="Image", form="PATH", option="IMAGE"),
        _words("Argument", "ARG…", "ARG", at_start=True),
        Key(name="Verbatim", form="ARG", option="--verbatim", is_list=True, at_start=True),
        Key(name="Tender", form="hvt|spt", option="--tender"),
        # Resources; the others of systemd.resource-control(5) are in [Service]
        Key(name="Memory", form="SIZE", option="--memory"),
        Key(name="MemoryMax", form="SIZE|infinity"),
        Key(name="CPUs", form="N", option="--cpus"),
        Key(name="CPUWeight", form="N", option="--cpu-weight"),
        # Networks
        Key(
            name="Network",
            form="NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS][,route=RANGE]",
            option="--net",
            is_list=True,
            at_start=True,
        ),
        Key(name="NetworkNamespace", form="NAME|PATH", option="--network-namespace"),
        Key(
            name="Publish",
            form="[NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]",
            option="--publish",
            is_list=True,
            at_start=True,
        ),
        _words("Egress", "[NIC=]ADDRESS[/PREFIX][:PORT[-PORT]][/tcp|/udp|/icmp]…|none", "--egress", at_start=True),
        _words("Rate", "[NIC=]KEY=N…", "--rate", at_start=True),
        _words("DNS", "ADDRESS…", "--dns", at_start=True),
        _words("DNSSearch", "DOMAIN…", "--dns-search", at_start=True),
        Key(name="HostName", form="NAME", option="--hostname"),
        _words("AddHost", "NAME:ADDRESS…", "--add-host", at_start=True),
        # Disks
        Key(
            name="Block",
            form="NAME=FILE|disk:DISK|files:PATH,...|credential:NAME[,OPTION...]",
            option="--block",
            is_list=True,
        ),
        # Journal
        _words("Label", "KEY=VALUE…", "--label"),
        _words("LogField", "KEY=VALUE…", "--log-field"),
        # Updates
        Key(name="Ready", form="tcp:PORT|udp:PORT|console:PATTERN", at_start=True),
        Key(name="Timeout", form="TIME"),
        Key(name="Drain", form="TIME", at_start=True),
        Key(name="Watch", form="TIME", at_start=True),
    )
}
"""By name."""
