# A guest with a disk that outlives its job: the volume `data`, made by `nomad volume create volumes/data.volume.hcl`.
job "volume" {
  type = "batch"

  group "volume" {
    volume "data" {
      type   = "host"
      source = "data"
    }

    task "volume" {
      driver = "solo5"

      volume_mount {
        volume      = "data"
        destination = "data"
      }

      config {
        unikernel = "disk.hvt"
        args      = ["read", "write=kept-on-data"]

        block "storage" {
          volume = "data"
        }
      }

      resources {
        memory = 32
      }
    }
  }
}
