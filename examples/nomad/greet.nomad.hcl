# A parameterised job: `nomad job dispatch -meta greeting=hi greet`. The values of a dispatch reach the guest as arguments.
job "greet" {
  type = "batch"

  parameterized {
    meta_required = ["greeting"]
  }

  group "greet" {
    task "greet" {
      driver = "solo5"

      config {
        unikernel = "hello.spt"
        args      = ["--greeting=${NOMAD_META_greeting}"]
        quiet     = true
      }

      resources {
        memory = 32
      }
    }
  }
}
