# An image that Nomad fetches and checks, and that is then found in the task's directory.
variable "source" {
  type        = string
  description = "where the image is, such as https://images.example/hello.spt"
}

variable "sha256" {
  type = string
}

job "artifact" {
  type = "batch"

  group "hello" {
    task "hello" {
      driver = "solo5"

      artifact {
        source      = var.source
        destination = "local/hello.spt"
        mode        = "file"

        options {
          checksum = "sha256:${var.sha256}"
        }
      }

      config {
        unikernel = "local/hello.spt"
      }

      resources {
        memory = 32
      }
    }
  }
}
