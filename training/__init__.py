"""The worker: model, inner and outer optimizer, compression, rounds."""
