"""One worker process: the engine, the chain and the store, joined (DESIGN 2, 4.1)."""
