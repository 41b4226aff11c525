from ipaddress import IPv4Address

from solo5_systemd.base.names import DeviceName
from solo5_systemd.network.model import PortRequest, Protocol
from solo5_systemd.task.workload import Publish


def test_a_published_port_keeps_all_but_its_nic() -> None:
    publish = Publish(host_ip=IPv4Address("192.0.2.1"), host_port=8080, port=80, protocol=Protocol.UDP)
    assert publish.to(DeviceName("service")) == PortRequest(
        nic=DeviceName("service"), host_ip=IPv4Address("192.0.2.1"), host_port=8080, port=80, protocol=Protocol.UDP
    )
