# A unikernel that prints a greeting and exits: its exit status is the task's.
job "hello" {
  type = "batch"

  group "hello" {
    task "hello" {
      driver = "solo5"

      config {
        unikernel = "hello.spt" # below one of the plugin's image_paths
        args      = ["from", "${NOMAD_JOB_NAME}"]
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
