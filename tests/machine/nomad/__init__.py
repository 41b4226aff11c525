"""The driver under a real Nomad agent: everything by `nomad` commands and its HTTP API."""
