"""Networks without an event loop: their records arrive as with the other client."""

from dataclasses import fields, replace
from ipaddress import IPv4Network

from tests.contract.bus.child import in_child
from tests.contract.bus.fake_systemd import FakeSystemd

from solo5_systemd.base.names import NetworkName
from solo5_systemd.cli.context import finished
from solo5_systemd.dbus.interfaces import RECORD
from solo5_systemd.dbus.messages import Message, to_wire
from solo5_systemd.engine.backends import QueryBackends
from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.overview import NetworkOverview
from solo5_systemd.network.use import NetworkUse
from solo5_systemd.settings.network_policy import Join
from solo5_systemd.settings.records import document
from solo5_systemd.settings.resolver import UNSET

PLAIN = NetworkOverview(
    name=NetworkName("default"), bridge="solo5", mtu=1500, up=True, leases=2, free=3, resolver=UNSET
)


SENT = [
    PLAIN,
    replace(PLAIN, name=NetworkName("counted"), dropped=Dropped(rules={("sent_rate", "s5tap"): 3})),
    replace(PLAIN, name=NetworkName("joined"), join=Join()),
    replace(PLAIN, name=NetworkName("own"), policy=replace(PLAIN.policy, dhcp=True), ipv4=IPv4Network("192.0.2.0/24")),
]


async def test_networks_are_read_as_they_were_sent(systemd: FakeSystemd) -> None:
    await systemd.bus.request_name("org.solo5.Network1")
    networks = {f":{each.name}": document(each) for each in SENT}

    def reply(message: Message) -> Message | bool:
        return message.member == "Networks" and Message.new_method_return(message, RECORD, [to_wire(RECORD, networks)])

    systemd.others = reply

    def read() -> list[NetworkUse]:
        return list(finished(QueryBackends().networks.networks()))

    assert await in_child(read) == [
        NetworkUse(**{each.name: getattr(sent, each.name) for each in fields(NetworkUse)}) for sent in SENT
    ]
