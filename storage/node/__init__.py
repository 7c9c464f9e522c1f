"""The storage node: a store engine, the HTTP API around it, and its view of the chain."""
