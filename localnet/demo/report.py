"""The end of the demo: figures, checks, and how to go on."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.amounts import format_tokens
from localnet.demo.scenario import Result, describe_wire
from localnet.demo.settings import LOSS_GOAL, ROUNDS_GOAL, SAME_LOSS, DemoSettings
from localnet.hints import home_option, shorten
from localnet.record import DevnetRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise of the demo."""

    what: str
    """The promise."""
    is_kept: bool
    """Whether it holds."""
    got: str
    """What was seen."""


def build_checks(result: Result, *, has_own_data: bool) -> tuple[Check, ...]:
    """Compare what happened with what the demo promises."""
    goal = result.first_loss if has_own_data else LOSS_GOAL
    pulled = result.pulled
    return (
        Check(
            what=f"{ROUNDS_GOAL} rounds or more became FINAL",
            is_kept=result.num_final >= ROUNDS_GOAL,
            got=f"{result.num_final} FINAL, {result.num_void} VOID",
        ),
        Check(
            what=f"the held-out loss of the agreed theta fell below {goal:.2f} nats a byte",
            is_kept=result.last_loss < goal,
            got=f"{result.first_loss:.3f} -> {result.last_loss:.3f}",
        ),
        Check(
            what="the killed worker, started again, caught up by itself and was counted again",
            is_kept=result.rejoined_round is not None,
            got="never" if result.rejoined_round is None else f"in round {result.rejoined_round}",
        ),
        Check(
            what="the pulled checkpoint has the root that the chain holds",
            is_kept=pulled.root == pulled.chain_root,
            got=f"version {pulled.version}, 0x{pulled.root.hex()[:16]}... and 0x{pulled.chain_root.hex()[:16]}...",
        ),
        Check(
            what="its held-out loss is the one on the chain",
            is_kept=pulled.chain_loss is not None and abs(pulled.loss - pulled.chain_loss) < SAME_LOSS,
            got=f"{pulled.loss:.3f} and {'none' if pulled.chain_loss is None else f'{pulled.chain_loss:.3f}'}",
        ),
        Check(what="it writes text", is_kept=bool(pulled.text.strip()), got=repr(pulled.text[:60])),
    )


def print_report(console: Console, result: Result, checks: tuple[Check, ...]) -> None:
    """Print figures and checks."""

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    snapshot = result.snapshot
    say("\nWhat it cost and what it gave", "bold")
    say(f"  {snapshot.num_settled} rounds in {result.seconds:.0f} s, {snapshot.height} blocks")
    say(f"  {describe_wire(snapshot)}")
    say(f"  storage {format_tokens(snapshot.paid_storage)}, pay {format_tokens(snapshot.paid_rewards)}")
    say("  what was left in escrow went back to the owner")
    say(f"  held-out loss of the agreed theta  {result.last_loss:.3f} nats a byte, two workers together")
    if result.solo is not None and not result.solo.is_done:
        say(
            f"  a worker alone                     no comparison: {result.solo.num_steps} of "
            f"{result.solo.num_steps_total} steps when the time was up (it runs at the lowest priority)"
        )
    elif result.solo is not None:
        say(f"  a worker alone                     {result.solo.loss:.3f} on {result.solo.num_tokens:,} tokens")
        seen = ", ".join(f"worker {worker.name} {worker.num_tokens:,}" for worker in snapshot.workers)
        say(f"  tokens of each                     {seen}")
        if result.solo.loss < result.last_loss:
            say(
                "  At this size and with so few rounds the exchange costs more than the second worker gives; the gap\n"
                "  shrinks with the model and the length of the run (README, Limits)."
            )
    say("\nChecks", "bold")
    for check in checks:
        mark, style = ("ok  ", "green") if check.is_kept else ("FAIL", "bold red")
        say(f"  {mark} {check.what}: {check.got}", style)


def print_how_to_go_on(console: Console, settings: DemoSettings, record: DevnetRecord) -> None:
    """KEEP: say how to talk to the devnet, how others join, and how to stop it."""
    option, keys = home_option(record.home), shorten(settings.home / "keys")
    url, training = record.rpc_url, ADDRESSES["Training"]
    console.print(
        f"""
The devnet is still up: {url} (a page in the browser, JSON-RPC for tools)
What follows is in .venv/bin, cast aside, and the python that knows web3, too; first:  . .venv/bin/activate

  web3.py   python                                  # and in it:
            from web3 import Web3; import json
            w3 = Web3(Web3.HTTPProvider("{url}"))
            abi = json.load(open("contracts/abi/Training.json"))
            training = w3.eth.contract("{training}", abi=abi, decode_tuples=True)
            print(training.functions.run(1).call())
  cast      cast call {training} "numRuns()(uint64)" --rpc-url {url}
            cast block latest --rpc-url {url}
  trainer   trainer status --run 1 --chain {url}
  storage   storage put FILE --tier hot --blocks 1000 --chain {url} --key-file {keys}/owner.key
  money     localnet fund 0x...{option}

  home      {shorten(record.home)}, on this machine only; plain localnet up starts another, empty devnet
  again     localnet up --detach{option}   (after a stop: its chain goes on)

  For other machines the same devnet starts anew: the stop below, then
    localnet up --detach{option} --host 0.0.0.0 --advertise THIS_MACHINE
  Run 1 has finished: create one (trainer run create), pay WORKER_ADDRESS with the line "money"; there,
    git clone, make setup and . .venv/bin/activate, then trainer keys new worker.key, then
    trainer join --chain http://THIS_MACHINE:{url.rpartition(":")[2]} --run 2 --key-file worker.key --home worker
  (only outbound connections; if the run is allow-listed its owner allows WORKER_ADDRESS first).

  stop      localnet down{option}""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
