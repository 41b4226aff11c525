# A guest with a disk: a file below one of the plugin's block_paths, which the user solo5 may write. It is locked for as
# long as the task runs.
job "disk" {
  type = "batch"

  group "disk" {
    task "disk" {
      driver = "solo5"

      config {
        unikernel = "disk.hvt"
        args      = ["read"]

        block "storage" {
          source      = "/srv/disks/storage.img"
          sector_size = 512
        }
      }

      resources {
        memory = 32
      }
    }
  }
}
