# A web server with an IPv4 and an IPv6 address, whose port is published for both. The node's plugin configuration:
#
#   network "front" {
#     ipv6 = true
#   }
job "dual-stack" {
  group "web" {
    network {
      port "http" {
        to = 80
      }
    }

    task "web" {
      driver = "solo5"

      config {
        unikernel = "net.spt"
        ports     = ["http/tcp"]
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--ipv4-gateway={net.service.gateway4}",
          "--ipv6={net.service.ipv6_cidr}",
          "--ipv6-gateway={net.service.gateway6}",
        ]

        nic "service" {
          network = "front"
        }
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
