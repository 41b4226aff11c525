# A worker that reaches one database and one resolver, and nothing else, with at most 1 MB a second. It needs no
# configuration of the node: a job can always restrict itself further.
job "worker" {
  group "worker" {
    task "worker" {
      driver = "solo5"

      config {
        unikernel = "net.spt"
        egress    = ["192.0.2.2:9/udp", "192.0.2.2:53"]
        rate      = ["sent=1M", "received=1M"]
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--ipv4-gateway={net.service.gateway4}",
          "--send=192.0.2.2:9",
        ]
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
