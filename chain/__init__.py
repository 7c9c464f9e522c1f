"""The replicated ledger: a pure state machine in `chain.core`, an ABCI shell, JSON-RPC and the page around it."""
