# A guest on two networks, its ports on the first, with limits of its own on threads and open files. The node defines the
# second one: plugin "solo5" { config { network "management" { ipv4 = "10.98.0.0/24" } } }
job "gateway" {
  group "gateway" {
    network {
      port "http" {
        to = 80
      }
    }

    task "gateway" {
      driver = "solo5"

      config {
        unikernel = "net2.spt"
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--management-ipv4={net.management.ipv4_cidr}",
        ]

        nic "service" {
          ports = ["http/tcp"]
        }

        nic "management" {
          network = "management"
        }

        properties {
          TasksMax    = "16"
          LimitNOFILE = "256"
        }
      }

      resources {
        memory     = 64
        memory_max = 128
      }
    }
  }
}
