"""The operator's configuration: /etc/solo5/*.toml, and the policy of a Nomad client."""
