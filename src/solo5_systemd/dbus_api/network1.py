"""The D-Bus interface org.solo5.Network1 of solo5-networkd."""

from solo5_systemd.dbus_api.messages import Interface, Method, Signal
from solo5_systemd.network.guest_limits import LIMITS_SIGNATURE
from solo5_systemd.network.model import (
    LEASE_SIGNATURE,
    NAMES_SIGNATURE,
    NIC_SIGNATURE,
    OVERVIEW_SIGNATURE,
    PORT_SIGNATURE,
)

_REQUEST = f"sa{NIC_SIGNATURE}a{PORT_SIGNATURE}a{LIMITS_SIGNATURE}"

INTERFACE = Interface(
    name="org.solo5.Network1",
    path="/org/solo5/Network1",
    methods={
        "Reserve": Method(
            f"{_REQUEST}{NAMES_SIGNATURE}s",
            f"a{LEASE_SIGNATURE}",
            "task nics ports limits names namespace leases",
        ),
        "Preview": Method(f"{_REQUEST}s", f"a{LEASE_SIGNATURE}s", "task nics ports limits namespace leases nft"),
        "Attach": Method("s", "", "task"),
        "MovePorts": Method("ss", "", "source target"),
        "Release": Method("s", "", "task"),
        "Leases": Method("", f"a(sa{LEASE_SIGNATURE}a{PORT_SIGNATURE}s)", "leases"),
        "Networks": Method("", f"a{OVERVIEW_SIGNATURE}", "networks"),
        "Collect": Method("b", "as", "dry_run collected"),
    },
    signals={"Repaired": Signal("ass", "tasks resource")},
)
