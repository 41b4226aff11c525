"""Task events, as `nomad alloc status` shows them."""
