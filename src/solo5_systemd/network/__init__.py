"""How a unikernel is connected: addresses, links, packet filter."""
