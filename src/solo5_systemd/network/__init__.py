"""Networks of unikernels: addresses, leases, links, nftables."""
