# An update without a failed request: the new version runs beside the old one until it is promoted. To update:
#
#   nomad job run -var version=2 canary.nomad.hcl
#   nomad deployment promote ID
#
# The port is the scheduler's choice, so that two allocations have room on one node; clients find them by the service, here
# registered with Nomad. With `static` the second one needs another node.
variable "version" {
  type    = string
  default = "1"
}

job "canary" {
  update {
    canary           = 1
    auto_revert      = true
    min_healthy_time = "5s"
    healthy_deadline = "1m"
  }

  group "web" {
    network {
      port "http" {
        to = 80
      }
    }

    task "web" {
      driver = "solo5"

      config {
        unikernel = "net.hvt"
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--ipv4-gateway={net.service.gateway4}",
          "--version=${var.version}",
        ]

        # The canary is healthy, and can be promoted, some time after it answers.
        ready {
          tcp      = "http"
          deadline = "20s"
        }
      }

      service {
        name        = "canary"
        provider    = "nomad"
        port        = "http"
        tags        = ["live"]
        canary_tags = ["canary"]
      }

      # Clients that have found the old allocation before have so long to find the other one.
      shutdown_delay = "2s"

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
