"""Nomad's plugin messages: packages, names and numbers are those of Nomad 2.0."""
