# A network guest: an address of its own, a port of the node that leads there, and a service with a health check.
job "web" {
  group "web" {
    count = 1

    network {
      port "http" {
        to = 80
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

        # It runs, for Nomad and its services, when it answers.
        ready {
          tcp      = "http"
          deadline = "20s"
        }
      }

      service {
        name     = "web"
        provider = "nomad"
        port     = "http"

        check {
          type     = "tcp"
          interval = "5s"
          timeout  = "2s"
        }
      }

      resources {
        cpu    = 200
        memory = 64
      }
    }
  }
}
