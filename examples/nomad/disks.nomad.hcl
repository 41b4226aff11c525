# A guest with three disks: data that outlive the job, space that ends with the task, and its configuration. The node's plugin
# configuration:
#
#   allowed_disks = ["ledger-*"]
#
# The named disk `ledger-data` is created by the first start, and stays on the node. `ledger-blank` is made by the operator:
# solo5ctl disk create ledger-blank 64M. Any number of tasks may have a copy of it.
job "disks" {
  group "disks" {
    task "ledger" {
      driver = "solo5"

      template {
        destination = "local/name"
        data        = "first ledger"
      }

      config {
        unikernel = "ledger.spt"

        block "data" {
          disk   = "ledger-data"
          create = true
          size   = "64M"
        }

        block "scratch" {
          disk      = "ledger-blank"
          ephemeral = true
        }

        block "config" {
          files = ["local/name"]
        }
      }

      resources {
        memory = 32
      }
    }
  }
}
