"""The D-Bus interface org.solo5.Relay1 of solo5-relay."""

from solo5_systemd.dbus.messages import Interface, Method, Signal

INTERFACE = Interface(
    name="org.solo5.Relay1",
    path="/org/solo5/Relay1",
    methods={
        "Forward": Method("sssthh", "", "namespace task unit since stdout stderr"),
        "Drain": Method("s", "b", "task delivered"),
        "List": Method("", "as", "tasks"),
    },
    signals={"Gap": Signal("st", "task lines")},
)
