"""The network service: the only part that changes links and nftables, and the only writer of leases."""
