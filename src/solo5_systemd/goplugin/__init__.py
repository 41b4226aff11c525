"""HashiCorp's go-plugin, the plugin's side of it: a process that a host starts and then calls over gRPC."""

import os

# gRPC reads it when it is loaded. Its fork handlers are for children that use gRPC; ours are executed at once.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
