# Two unikernels in one group, beside each other: each lists the ports of the group that lead to it.
job "pair" {
  group "pair" {
    network {
      port "http" {
        to = 80
      }
      port "echo" {
        to = 7
      }
    }

    task "web" {
      driver = "solo5"

      config {
        unikernel = "net.hvt"
        ports     = ["http/tcp"]
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--ipv4-gateway={net.service.gateway4}",
        ]
      }

      resources {
        memory = 64
      }
    }

    task "echo" {
      driver = "solo5"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        unikernel = "net.hvt"
        ports     = ["echo/udp"]
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--ipv4-gateway={net.service.gateway4}",
        ]
      }

      resources {
        memory = 64
      }
    }
  }
}
