"""The plugin side of HashiCorp's go-plugin: a process that a host starts and calls over gRPC."""

import os

# Read by gRPC when it is imported. Its fork handlers are for children that use gRPC; ours call execve(2) at once.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
