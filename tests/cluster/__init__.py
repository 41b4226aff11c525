"""Several machines: a Nomad server, its clients, and what happens between them."""
