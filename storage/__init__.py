"""Storage nodes, tiers and the client for people."""
