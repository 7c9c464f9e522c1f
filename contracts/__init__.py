"""Interfaces of the system contracts, generated from one declaration, and typed readers."""
