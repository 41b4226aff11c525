"""The driver under a real Nomad agent, used by `nomad` commands and the HTTP API only."""
