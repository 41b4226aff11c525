"""Hides dbus-fast: with this directory in PYTHONPATH, dbus-next is used."""

raise ImportError("hidden by tests/support/without_dbus_fast")
