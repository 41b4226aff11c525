"""The D-Bus interface org.solo5.Network1 of solo5-networkd."""

from solo5_systemd.dbus.messages import Interface, Method, Signal
from solo5_systemd.dbus.values import RECORD, RECORDS

INTERFACE = Interface(
    name="org.solo5.Network1",
    path="/org/solo5/Network1",
    methods={
        "Reserve": Method(f"s{RECORD}", RECORDS, "task request leases"),
        "Preview": Method(f"s{RECORD}", f"{RECORDS}s", "task request leases nft"),
        "Attach": Method("s", "", "task"),
        "MovePorts": Method("ss", "", "source target"),
        "Release": Method("s", "", "task"),
        "Sleep": Method("s", "", "task"),
        "Wake": Method("s", "", "task"),
        "Awake": Method("s", "s", "task because"),
        "Leases": Method("", RECORDS, "records"),
        "Networks": Method("", RECORD, "networks"),
        "Collect": Method("b", "as", "dry_run collected"),
    },
    signals={"Repaired": Signal("ass", "tasks resource"), "SleepChanged": Signal("sbs", "task asleep reason")},
)
