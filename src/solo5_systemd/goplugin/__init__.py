"""HashiCorp's go-plugin, the plugin's side of it: a process that a host starts and then calls over gRPC."""
