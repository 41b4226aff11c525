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
    """

    name: str
    form: str
    option: str = ""
    is_list: bool = False
    has_words: bool = False


def _words(name: str, form: str, option: str = "") -> Key:
    return Key(name=name, form=form, option=option, is_list=True, has_words=True)


KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        # What runs
        Key(name="Image", form="PATH", option="IMAGE"),
        _words("Argument", "ARG…", "ARG"),
        Key(name="Tender", form="hvt|spt", option="--tender"),
        # Resources; the others of systemd.resource-control(5) are in [Service]
        Key(name="Memory", form="SIZE", option="--memory"),
        Key(name="MemoryMax", form="SIZE|infinity"),
        Key(name="CPUs", form="N", option="--cpus"),
        Key(name="CPUWeight", form="N", option="--cpu-weight"),
        # Networks
        Key(
            name="Network",
            form="NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS]",
            option="--net",
            is_list=True,
        ),
        Key(name="NetworkNamespace", form="NAME|PATH", option="--network-namespace"),
        Key(
            name="Publish",
            form="[NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]",
            option="--publish",
            is_list=True,
        ),
        _words("Egress", "[NIC=]ADDRESS[/PREFIX][:PORT[-PORT]][/tcp|/udp|/icmp]…|none", "--egress"),
        _words("Rate", "[NIC=]KEY=N…", "--rate"),
        _words("DNS", "ADDRESS…", "--dns"),
        _words("DNSSearch", "DOMAIN…", "--dns-search"),
        Key(name="HostName", form="NAME", option="--hostname"),
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
        Key(name="Ready", form="tcp:PORT|udp:PORT|console:PATTERN"),
        Key(name="Drain", form="TIME"),
        Key(name="Watch", form="TIME"),
    )
}
"""By name."""
