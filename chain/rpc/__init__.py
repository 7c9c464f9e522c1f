"""Ethereum JSON-RPC and the web page, read from LMDB snapshots."""
