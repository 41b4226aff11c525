# A MirageOS guest: its address by MirageOS' own arguments, its name servers, and the host's port at which it is reached.
# An image ends with 64 on an argument that it does not have: docs/nomad-job.md lists which versions have which.
job "mirage" {
  group "mirage" {
    network {
      port "http" {
        to = 80
      }

      dns {
        servers = ["9.9.9.9", "149.112.112.112"]
      }
    }

    task "mirage" {
      driver = "solo5"

      config {
        unikernel = "net.hvt"
        ports     = ["http/tcp"]
        args      = ["{mirage}", "--dns-servers={dns.udp}", "--public-port={port.http}"]

        ready {
          tcp = "http"
        }
      }

      resources {
        memory = 64
      }
    }
  }
}
