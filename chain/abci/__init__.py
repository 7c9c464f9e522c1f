"""ABCI 2.0 socket server and the application shell."""
