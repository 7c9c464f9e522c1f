"""Typed readers, senders and keys for the system contracts; no import of the node."""
