"""The network service: the only writer of links, nftables and lease files."""
