"""A worker made of several processes: pipeline stages, or one model sharded over the GPUs of a host."""
