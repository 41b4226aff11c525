# A guest with its configuration and a secret as a disk: a tar archive in memory that is never swapped, of the files as they
# are at the start. With change_mode = "restart", the default of templates, a new content is a new start.
job "files" {
  type = "batch"

  group "files" {
    task "files" {
      driver = "solo5"

      template {
        destination = "local/app.toml"
        data        = "port = 80"
      }

      template {
        destination = "secrets/token"
        data        = "{{ with nomadVar \"nomad/jobs/files\" }}{{ .token }}{{ end }}"
      }

      config {
        unikernel = "tar.spt"

        block "storage" {
          files = ["local/app.toml", "secrets/"]
        }
      }

      resources {
        memory = 32
      }
    }
  }
}
