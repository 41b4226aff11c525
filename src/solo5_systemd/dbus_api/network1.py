"""The D-Bus interface org.solo5.Network1 of solo5-networkd."""

from solo5_systemd.dbus_api.messages import Interface, Method, Signal
from solo5_systemd.network.model import (
    LEASE_SIGNATURE,
    NAMES_SIGNATURE,
    NIC_SIGNATURE,
    OVERVIEW_SIGNATURE,
    PORT_SIGNATURE,
)

_REQUEST = f"sa{NIC_SIGNATURE}a{PORT_SIGNATURE}"

INTERFACE = Interface(
    name="org.solo5.Network1",
    path="/org/solo5/Network1",
    methods={
        "Reserve": Method(
            f"{_REQUEST}{NAMES_SIGNATURE}", f"a{LEASE_SIGNATURE}", "task nics ports names leases", earlier=_REQUEST
        ),
        "Preview": Method(_REQUEST, f"a{LEASE_SIGNATURE}s", "task nics ports leases nft"),
        "ReserveInNamespace": Method(f"{_REQUEST}s", f"a{LEASE_SIGNATURE}", "task nics ports namespace leases"),
        "PreviewInNamespace": Method(f"{_REQUEST}s", f"a{LEASE_SIGNATURE}s", "task nics ports namespace leases nft"),
        "Attach": Method("s", "", "task"),
        "Release": Method("s", "", "task"),
        "Leases": Method("", f"a(sa{LEASE_SIGNATURE}a{PORT_SIGNATURE}s)", "leases"),
        "Networks": Method("", f"a{OVERVIEW_SIGNATURE}", "networks"),
        "Collect": Method("b", "as", "dry_run collected"),
    },
    signals={"Repaired": Signal("ass", "tasks resource")},
)
