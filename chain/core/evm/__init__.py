"""Users' contracts: py-evm's Prague rules on the chain's own overlay."""
