"""Nomad's messages, as its plugins exchange them: packages, names and numbers are those of Nomad 2.0."""
