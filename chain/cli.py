"""``chain-node``: initialise, run and look at a node of the chain."""

from __future__ import annotations

import sys

import typer

from chain.child import ChildFailed
from chain.cometbft import CometBftMissing
from chain.commands import initialising, looking, proving, registering, resetting, running, syncing
from chain.core.errors import ChainError
from chain.home import HomeError
from chain.joining import JoinFailed
from chain.recursion import StackTooSmall
from chain.registering import NotRegistered
from chain.settings import InvalidSettings
from chain.store import StoreError
from contracts.bindings.errors import BindingError
from contracts.bindings.failures import describe_failure
from contracts.bindings.version import add_version

app = typer.Typer(
    help="Run a node of the chain: CometBFT, the application and JSON-RPC.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_version(app)
app.command("init")(initialising.init)
app.command("testnet")(initialising.init_network)
app.command("join")(syncing.join)
app.command("start")(running.start)
app.command("status")(looking.status)
app.command("doctor")(looking.doctor)
app.command("snapshot")(syncing.snapshot)
app.command("reset")(resetting.reset)
app.command("verify")(proving.verify_read)
app.command("validator-proof")(proving.make_validator_proof)
app.command("register-validator")(registering.register_validator)
app.command("leave-validator")(registering.leave_validator)
app.command("abci")(running.abci)
app.command("rpc")(running.rpc)


def main() -> None:
    """Run the command line; expected failures are one readable line, the next step and exit code 1."""
    try:
        app()
    except (
        HomeError,
        StoreError,
        CometBftMissing,
        ChildFailed,
        ChainError,
        InvalidSettings,
        JoinFailed,
        StackTooSmall,
        NotRegistered,
        BindingError,
    ) as error:
        print(describe_failure(error), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
