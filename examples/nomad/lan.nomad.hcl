# A unikernel in VLAN 20 of the LAN, on a VLAN-aware bridge that is the operator's. The node's plugin configuration:
#
#   network "lan" {
#     join     = "br0"
#     vlan     = 20
#     ipv4     = "10.66.0.0/24"
#     gateway4 = "10.66.0.1"
#     pool     = "10.66.0.200-10.66.0.209"
#   }
#
# It is a machine of the LAN: no port is published, and its service is registered at its own address.
job "lan" {
  group "web" {
    task "web" {
      driver = "solo5"

      config {
        unikernel = "net.spt"
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--ipv4-gateway={net.service.gateway4}",
        ]

        nic "service" {
          network = "lan"
        }
      }

      service {
        name         = "lan"
        provider     = "nomad"
        address_mode = "driver"
        port         = "80"
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
