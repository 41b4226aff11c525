"""Several machines: a Nomad server and its clients."""
