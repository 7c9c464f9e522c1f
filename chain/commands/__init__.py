"""What `chain-node` can do, a module an idea; `chain.cli` puts them together."""
