"""`localnet up | down | status | fund`: a devnet on this machine."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import time
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from chain.home import load_listening
from chain.own_modules import make_command
from contracts.bindings.amounts import format_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.devnet import CHAIN_VARIABLE, DEFAULT_CHAINS
from contracts.bindings.encoding import checksummed
from contracts.bindings.errors import BindingError
from contracts.bindings.failures import SEPARATOR, describe_failure
from contracts.bindings.foreign_text import show_lines
from contracts.bindings.keys import address_of, load_key
from contracts.bindings.sender import Sender
from contracts.bindings.standstill import watch_for_block
from contracts.bindings.version import add_version
from localnet.core.config import DEFAULT_HOME, FUND_TOKENS, RPC_PORT, WEI_PER_TOKEN, DevnetConfig
from localnet.core.errors import (
    ChainStandsStill,
    DevnetAlreadyUp,
    DevnetNotUp,
    FaucetEmpty,
    LocalnetError,
    NotReadyInTime,
    Stopped,
    StrangerAnswers,
)
from localnet.devnet import Devnet, find_running, hold_home, make_home, reset_home
from localnet.hints import home_option, shorten
from localnet.identity import check_is_ours
from localnet.process import end_processes, get_family, is_alive, start_child, stop_by_id, stop_children
from localnet.record import DevnetRecord, Phase, load_record, load_up
from localnet.stopping import StopRequest
from localnet.supervisor import Supervisor

DOWN_SECONDS = 14.0
"""The supervisor's own ten seconds and a margin, before `down` ends it and its descendants itself."""
DETACH_SECONDS = 180.0
"""`up --detach` waits this long for the devnet to be ready."""
STILL_DETACH_SECONDS = 20.0
"""`up --detach` waits this long, of them, for a chain that stands still; on a busy machine it may only be slow."""
LOOPBACK = "127.0.0.1"
"""Where a devnet listens unless told otherwise: only this machine reaches it."""
WRONG_INPUT_EXIT = 2
"""Exit code for an argument that no retry makes right, as with `trainer`."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A devnet on this machine: chain, stores, faucet.",
)
add_version(app)

Home = Annotated[Path, typer.Option(help="Where everything of the devnet lies.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    home: Home = Path(DEFAULT_HOME),
    validators: Annotated[int, typer.Option(help="Validators.")] = 1,
    storage: Annotated[int, typer.Option(help="Storage nodes; from 4 on one may lie or be dead.")] = 4,
    host: Annotated[
        str | None,
        typer.Option(help="Listen address; 0.0.0.0 lets other machines in. As last time, at first 127.0.0.1."),
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="By which address other machines reach this one. As last time, if not given.")
    ] = None,
    rpc_port: Annotated[
        int | None,
        typer.Option(help=f"JSON-RPC and the page; the next free one if busy. As last time, at first {RPC_PORT}."),
    ] = None,
    capacity: Annotated[str, typer.Option(help="What each storage node offers.")] = "2GB",
    reset: Annotated[bool, typer.Option("--reset", help="Forget the chain of last time.")] = False,
    restarts: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start a storage node again that has ended.")
    ] = True,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running in the background.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a devnet up; in the foreground until Ctrl-C unless --detach."""
    if not reset:
        host, advertise, said = recall_address(home, host, advertise)
        rpc_port, said_port = recall_port(home, rpc_port)
        for line in filter(None, (said, said_port)):
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    try:
        config = DevnetConfig(
            home=home.resolve(),
            host=LOOPBACK if host is None else host,
            advertise=advertise or "",
            rpc_port=RPC_PORT if rpc_port is None else rpc_port,
            num_validators=validators,
            num_storage=storage,
            capacity=capacity,
            restarts_stores=restarts,
        )
    except ValueError as error:
        fail(str(error))
    if detach:
        up_detached(config, is_reset=reset, as_json=as_json)
    else:
        raise typer.Exit(up_foreground(config, is_reset=reset, as_json=as_json))


def recall_address(home: Path, host: str | None, advertise: str | None) -> tuple[str | None, str | None, str]:
    """Return where to listen and what to advertise, from last time where not given, and a line that says so."""
    try:
        last = load_record(home)
    except LocalnetError:
        return host, advertise, ""  # there was no last time, or whoever needs its record says what is wrong with it
    if last.host in ("", LOOPBACK) or (host is not None and host != last.host):
        return host, advertise, ""
    is_told = host is not None and advertise is not None
    host, advertise = last.host, last.advertise if advertise is None else advertise
    known_as = f", to others {advertise}" if advertise else ""
    said = f"listening on {host}{known_as}, as last time; only on this machine: --host {LOOPBACK}"
    return host, advertise, "" if is_told else said


def recall_port(home: Path, rpc_port: int | None) -> tuple[int | None, str]:
    """Return where JSON-RPC listens, where it did last time if not given, and a line that says so.

    It is the port that was had, not the one wished for: what people wrote down goes on to work.
    """
    try:
        last = load_record(home).rpc_port
    except LocalnetError:
        return rpc_port, ""
    if rpc_port is not None or last in (0, RPC_PORT):
        return rpc_port, ""
    return last, f"JSON-RPC on port {last}, as last time; the usual one: --rpc-port {RPC_PORT}"


@app.command()
def down(
    home: Home = Path(DEFAULT_HOME), quiet: Annotated[bool, typer.Option("--quiet")] = False, as_json: Json = False
) -> None:
    """Stop a devnet and everything it started."""
    try:
        record = load_record(home)
    except LocalnetError as error:
        if quiet:
            return
        fail(str(error))
    was_up = stop_devnet(record)
    if as_json:
        print(json.dumps({"home": record.home, "was_up": was_up}))
    elif not quiet:
        print("stopped" if was_up else f"nothing was up in {record.home}")


@app.command()
def status(home: Home = Path(DEFAULT_HOME), as_json: Json = False) -> None:
    """Say what is up; exit code 1 when nothing is, or its chain stands still."""
    try:
        record = load_record(home)
    except LocalnetError as error:
        fail(str(error))
    facts = collect_status(record)
    if as_json:
        print(json.dumps(facts))
    else:
        print_status(facts)
    if not record.is_up or facts["stands_still"]:
        raise typer.Exit(1)


@app.command()
def fund(
    address: Annotated[str, typer.Argument(help="0x...; who gets the money.")],
    tokens: Annotated[str, typer.Option(help="How much, in whole tokens or a decimal part.")] = str(FUND_TOKENS),
    home: Home = Path(DEFAULT_HOME),
    as_json: Json = False,
) -> None:
    """Send money from the faucet."""
    try:
        wanted = Decimal(tokens)
        amount = int(wanted * WEI_PER_TOKEN) if wanted.is_finite() else 0
        if amount <= 0:
            fail(f"--tokens is {tokens}, expected more than 0; next: such as 1000 or 0.5", WRONG_INPUT_EXIT)
        address = parse_address(address)
    except InvalidOperation:
        fail(f"--tokens is {tokens!r}, expected a number; next: such as 1000 or 0.5", WRONG_INPUT_EXIT)
    except ValueError as error:
        fail(str(error), WRONG_INPUT_EXIT)
    try:
        record = load_up(home)
        outcome = send_from_faucet(record, address, amount)
        client = ChainClient([record.rpc_url])
        balance = client.balance(address)
        client.close()
    except (LocalnetError, BindingError, ValueError) as error:
        fail(str(error))
    if as_json:
        print(json.dumps({"transaction": outcome, "balance_wei": str(balance)}))
    else:
        print(
            f"sent {format_tokens(amount)} to {address}; its balance is {format_tokens(balance)}; transaction {outcome}"
        )


def parse_address(text: str) -> str:
    """Read an address and return it with its checksum; raises ValueError with the next step."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{40}", text):
        raise ValueError(
            f"{text!r} is no address: expected 0x and 40 hex digits; next: `trainer keys show FILE` prints one"
        )
    right = checksummed(text)
    is_mixed = text[2:] not in (text[2:].lower(), text[2:].upper())
    if is_mixed and text != right:
        raise ValueError(
            f"the checksum of {text} is wrong: a digit may be mistyped; next: with these digits it is {right}"
        )
    return right


def send_from_faucet(record: DevnetRecord, address: str, amount: int) -> str:
    """Send ``amount`` wei from the faucet and return the transaction's hash.

    Raises StrangerAnswers where another chain answers, and FaucetEmpty.
    """
    client = ChainClient([record.rpc_url])
    try:
        check_is_ours(client, record.rpc_url, record.chain_id)
        faucet = Sender(client, load_key(Path(record.faucet_key)))
        held = client.balance(faucet.address)
        if held <= amount:
            raise FaucetEmpty(format_tokens(held), format_tokens(amount))
        outcome = faucet.transfer(address, amount)
    finally:
        client.close()
    return "0x" + bytes(outcome.transaction_hash).hex()


def up_foreground(config: DevnetConfig, *, is_reset: bool, as_json: bool) -> int:
    """Supervise a devnet until somebody asks to stop; return the exit code."""
    home = Path(config.home)
    stop = StopRequest()
    stop.listen()

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk under the log must not end what runs
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    try:
        with hold_home(home):
            if is_reset:
                reset_home(home)
            with Supervisor(logs=home / "logs", adopts_orphans=True) as supervisor:
                devnet = Devnet(config, supervisor, stop, say)
                phase, why, code = Phase.STOPPED, "", 0
                try:
                    record = devnet.start()
                    if as_json:
                        print(json.dumps(asdict(record)), flush=True)
                    else:
                        print_ready(record, config.rpc_port)
                    devnet.watch()
                except Stopped:
                    code = 0 if devnet.record.phase is Phase.READY else INTERRUPTED
                except (LocalnetError, BindingError) as error:
                    phase, why, code = Phase.FAILED, str(error), 1
                    print(describe_failure(error), file=sys.stderr)
                finally:
                    say("stopping the devnet ...")
                    if phase is Phase.STOPPED:
                        devnet.begin_stop()
                    supervisor.stop()
                    devnet.finish(phase, why)
            return code
    except LocalnetError as error:
        print(describe_failure(error), file=sys.stderr)
        return 1


def up_detached(config: DevnetConfig, *, is_reset: bool, as_json: bool) -> None:
    """Start a supervisor of its own session, wait until its devnet is ready, and leave it."""
    home = Path(config.home)
    running = find_running(home)
    if running is not None:
        fail(str(DevnetAlreadyUp(str(home), running.supervisor.pid, home_option(home))))
    if is_reset:
        reset_home(home)
    log = home / "localnet.log"
    make_home(home)
    command = make_command("localnet.cli", "up", "--home", str(home), "--storage", str(config.num_storage))
    command += ["--validators", str(config.num_validators), "--host", config.host, "--advertise", config.advertise]
    command += ["--rpc-port", str(config.rpc_port), "--capacity", config.capacity]
    command += ["--restart" if config.restarts_stores else "--no-restart"]
    stop = StopRequest()
    stop.listen()
    child = start_child("localnet up", command, log=log, is_leashed=False)
    record: DevnetRecord | None = None
    still_at = math.inf

    def is_ready() -> bool:
        nonlocal record, still_at
        child.check()
        with contextlib.suppress(DevnetNotUp):
            record = load_record(home)
        if record is None or record.supervisor.pid != child.id.pid:
            return False
        if not record.why:
            still_at = math.inf
        elif still_at == math.inf:
            still_at = time.monotonic()
            print(f"warning: {show_lines(record.why)}", file=sys.stderr, flush=True)
        elif time.monotonic() - still_at >= STILL_DETACH_SECONDS:
            raise ChainStandsStill(str(home), record.why, home_option(str(home)))
        return record.phase is Phase.READY

    try:
        stop.wait_until(is_ready, "the devnet", deadline_seconds=DETACH_SECONDS)
    except ChainStandsStill as error:
        fail(error)  # it runs on: whoever it needs may come
    except (LocalnetError, Stopped) as error:
        stop_children([child])
        if isinstance(error, Stopped):
            raise typer.Exit(INTERRUPTED) from error
        fail(f"{error}\n{child.read_tail()}" if isinstance(error, NotReadyInTime) else str(error))
    assert record is not None
    if as_json:
        print(json.dumps(asdict(record)))
    else:
        print_ready(record, config.rpc_port)


def stop_devnet(record: DevnetRecord) -> bool:
    """Stop what a record names, by id and start time; return whether anything was up."""
    families = [member for one in record.processes for member in get_family(one.id)]
    living = [one for one in record.processes if is_alive(one.id)]
    was_up = is_alive(record.supervisor)
    if was_up:
        stop_by_id(record.supervisor, term_seconds=DOWN_SECONDS)
    for one in reversed(living):
        stop_by_id(one.id, term_seconds=1.0)
    end_processes(families)
    return was_up or bool(living)


def collect_status(record: DevnetRecord) -> dict[str, Any]:
    """Collect what `status` shows."""
    facts: dict[str, Any] = {
        "home": record.home,
        "phase": describe_phase(record),
        "is_up": record.is_up,
        "why": record.why,
        "chain_id": record.chain_id,
        "rpc_urls": list(record.rpc_urls),
        "public_urls": list(record.public_urls),
        "height": None,
        "stands_still": False,
        "storage_urls": list(record.storage_urls),
        "processes": [{"name": one.name, "pid": one.id.pid, "is_alive": is_alive(one.id)} for one in record.processes],
    }
    if record.is_up and record.rpc_url:
        client = ChainClient([record.rpc_url], timeout_seconds=2.0)
        try:
            check_is_ours(client, record.rpc_url, record.chain_id)
            facts["evm_chain_id"] = client.chain_id()
            found = watch_for_block(client.height, client.ask_consensus)
            facts.update(height=client.height(), stands_still=bool(found), why=found)
        except (BindingError, StrangerAnswers) as error:
            facts["why"] = str(error)
        finally:
            client.close()
    return facts


def describe_phase(record: DevnetRecord) -> str:
    """Say how a devnet is: `dead` is one whose supervisor ended without being asked."""
    if record.phase is Phase.STOPPING:
        return Phase.STOPPING.value if is_alive(record.supervisor) else Phase.STOPPED.value
    if record.is_up or record.phase in (Phase.FAILED, Phase.STOPPED):
        return record.phase.value
    return "dead"


def print_status(facts: dict[str, Any]) -> None:
    """Print what `status` shows as a table."""
    table = Table()
    for heading in ("process", "pid", "alive"):
        table.add_column(heading)
    for one in facts["processes"]:
        table.add_row(one["name"], str(one["pid"]), "yes" if one["is_alive"] else "NO")
    console = Console(highlight=False, soft_wrap=True)
    still = ", BUT ITS CHAIN STANDS STILL" if facts["stands_still"] else ""
    console.print(f"devnet in {facts['home']}: {facts['phase']}{still}", markup=False)
    is_anything_up = (
        facts["is_up"] or facts["phase"] == "stopping" or any(one["is_alive"] for one in facts["processes"])
    )
    if is_anything_up:
        console.print(table)
        console.print(
            f"JSON-RPC {' '.join(facts['rpc_urls'])}  block {facts['height'] or '-'}  chain {facts['chain_id']}",
            markup=False,
        )
    if facts["why"]:
        console.print(show_lines(facts["why"].replace(SEPARATOR, "\nnext: ")), markup=False)
    down = [one["name"] for one in facts["processes"] if not one["is_alive"]]
    if down and facts["is_up"]:
        option = home_option(facts["home"])
        console.print(
            f"{', '.join(down)} down: a store is started again by itself, unless it ended too often; next: read "
            f"{shorten(facts['home'])}/logs, then localnet down{option} and localnet up{option}, the chain goes on",
            markup=False,
        )
    elif facts["phase"] == "dead":
        console.print("its supervisor was killed; next: localnet up goes on with its chain", markup=False)
    elif not is_anything_up and SEPARATOR not in facts["why"]:
        console.print(f"nothing is up; next: localnet up{home_option(facts['home'])}", markup=False)


def print_ready(record: DevnetRecord, wished_port: int) -> None:
    """Say how to talk to the devnet, where it isn't where it was wished, and how to stop it."""
    home, option = shorten(record.home), home_option(record.home)
    faucet = address_of(load_key(Path(record.faucet_key)))
    print(
        f"devnet {record.chain_id} is up\n"
        f"  JSON-RPC and page  {' '.join(record.rpc_urls)}\n"
        + (f"  from elsewhere     {' '.join(record.public_urls)}\n" if record.public_urls != record.rpc_urls else "")
        + "".join(f"  CometBFT's RPC     {url}   (chain-node join)\n" for url in find_cometbft_urls(record))
        + f"  storage nodes      {' '.join(record.storage_urls)}\n"
        f"  money              localnet fund 0x...{option}   (from the faucet {faucet})\n"
        f"  logs               {home}/logs\n"
        f"  stop               localnet down{option}" + describe_other_port(record.rpc_url, wished_port),
        flush=True,
    )


def find_cometbft_urls(record: DevnetRecord) -> list[str]:
    """Return where the validators' CometBFTs listen, as they wrote it down when they started."""
    listening = [load_listening(home) for home in sorted(Path(record.home).glob("validator-*"))]
    return [each.cometbft_url for each in listening if each is not None]


def describe_other_port(url: str, wished_port: int) -> str:
    """Say that the wished port was busy, and what makes other commands ask this chain; nothing where both fit."""
    busy = "" if url.endswith(f":{wished_port}") else f"\n  port {wished_port} is busy: another program has it"
    setting = "" if [url] == DEFAULT_CHAINS else f"\n  for other commands export {CHAIN_VARIABLE}={url}"
    return busy + setting


def fail(message: str | Exception, exit_code: int = 1) -> NoReturn:
    """Print why and what next on stderr, and end with an exit code: 1, or 2 where a retry changes nothing."""
    print(describe_failure(message if isinstance(message, Exception) else LocalnetError(message)), file=sys.stderr)
    raise typer.Exit(exit_code)


def main() -> None:
    """Run the command line; an expected failure is a few readable lines and exit code 1."""
    try:
        app()
    except LocalnetError as error:
        print(describe_failure(error), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
