# One guest on every node that has the driver and a usable KVM.
job "everywhere" {
  type = "system"

  constraint {
    attribute = "${attr.driver.solo5.kvm}"
    value     = "true"
  }

  group "agent" {
    task "agent" {
      driver = "solo5"

      config {
        unikernel = "sleeper.hvt"
      }

      resources {
        memory = 32
      }
    }
  }
}
