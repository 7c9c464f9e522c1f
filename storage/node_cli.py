"""``storage-node start | status | retire | drain | doctor``: configuration comes in here, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contracts.bindings.amounts import parse_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import BindingError, ContractError, KeyFileError
from contracts.bindings.failures import describe_failure
from contracts.bindings.foreign_text import ForeignTextFormatter
from contracts.bindings.keys import address_of, load_address
from contracts.bindings.option_needs import check_needs
from contracts.bindings.sender import Sender
from contracts.bindings.standing_alone import take_alone
from contracts.bindings.types import StorageNodeState
from contracts.bindings.unlocking import ask_password, unlock_key
from contracts.bindings.version import add_version
from da.core.errors import NotAFile
from storage.amounts import format_wei
from storage.cli_session import DEFAULT_CHAIN, Chain
from storage.core.accusation import AccusationPolicy
from storage.core.errors import HomeInUse, NotFunded, StorageError, WrongChain
from storage.core.leaving import explain_bond
from storage.foreign_status import LOCAL_URLS, describe_status, fetch_status, get_kept
from storage.node.config import NodeConfig
from storage.node.doctor import diagnose, find_broken_databases
from storage.node.engine import StoreEngine
from storage.node.homes import lock_home
from storage.node.keys import load_or_create_operator_key, load_or_create_receipt_key
from storage.node.peer_noise import PeerNoise
from storage.node.rpc import RpcChain, RpcChallenges, RpcRegistration
from storage.node.service import open_shelf, run_node
from storage.node.trace import FileTrace
from storage.sizes import format_size, parse_size

FAILED = 1
"""Exit code: anything that has no code of its own."""
BAD_INPUT = 2
"""Exit code: an option makes no sense."""
NOT_FUNDED = 3
"""Exit code: no funds came before the deadline."""
WRONG_CHAIN = 4
"""Exit code: the home belongs to another chain."""
HOME_IN_USE = 5
"""Exit code: another process holds the home."""
NOT_REACHED = 6
"""Exit code: ``status`` got no answer."""

UNWELL = 7
"""Exit code: ``doctor`` found something."""

DEFAULT_RAM_BYTES = "1GiB"

ColdEndpoint = Annotated[str, typer.Option(help="With --cold-bucket: URL of an S3 server that is not Amazon's.")]

DRAIN_SECONDS = 10.0
"""Between two looks at a draining node."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # a private key may be among them
    help="A storage node: keeps shards, signs receipts.",
)
add_version(app)


@app.command()
def start(
    home: Annotated[Path, typer.Option(help="Where keys, shards and index lie.")],
    chain: Chain = DEFAULT_CHAIN,
    listen: Annotated[str, typer.Option(help="host:port; port 0 takes a free one.")] = "127.0.0.1:9001",
    advertise: Annotated[str, typer.Option(help="URL by which clients reach the node.")] = "",
    bulk_port: Annotated[
        int | None, typer.Option(min=-1, max=65535, help="Port for shards over plain TCP; 0 a free one, -1 none.")
    ] = None,
    capacity: Annotated[str, typer.Option(help="Bytes to give, e.g. 10GB.")] = "10GB",
    ram: Annotated[
        Path | None, typer.Option(help="Folder of a memory file system (tmpfs) where temporary shards lie.")
    ] = None,
    ram_bytes: Annotated[
        str, typer.Option(help="With --ram: what may lie there; the rest goes to the home.")
    ] = DEFAULT_RAM_BYTES,
    key_file: Annotated[Path | None, typer.Option(help="The operator's key; made in the home if missing.")] = None,
    keep_free: Annotated[str, typer.Option(help="Bytes that stay free on the filesystem.")] = "64MiB",
    funds_deadline: Annotated[float, typer.Option(help="Seconds to wait for funds to register.")] = 300.0,
    bond: Annotated[str, typer.Option(help="Tokens that the node can lose, sent when it registers.")] = "1",
    rejoins: Annotated[bool, typer.Option("--rejoin", help="Register again after retiring or being slashed.")] = False,
    cold_bucket: Annotated[
        str, typer.Option(help="Bucket for cold shards, s3://bucket/prefix; keys come from AWS_* variables.")
    ] = "",
    cold_endpoint: ColdEndpoint = "",
    scrub_rate: Annotated[str, typer.Option(help="Bytes a second that scrubbing may read; 0: none.")] = "32MiB",
    repair_rate: Annotated[str, typer.Option(help="Bytes a second that repair may read.")] = "64MiB",
    audit_every: Annotated[int, typer.Option(min=1, help="Blocks between two audits of peers.")] = 100,
    has_challenges: Annotated[
        bool,
        typer.Option("--challenge/--no-challenge", help="Challenge peers that fail audits, at the price of a bond."),
    ] = True,
    challenge_after: Annotated[int, typer.Option(help="Failed audits of a leaf in a row before a challenge.")] = 20,
    challenge_every: Annotated[int, typer.Option(help="At most one challenge in so many blocks.")] = 1_000,
    trace: Annotated[Path | None, typer.Option(help="Append what happens, as JSON lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Run a storage node until SIGTERM or Ctrl-C."""
    check_needs("--ram-bytes", ram_bytes != DEFAULT_RAM_BYTES, "--ram", ram)
    check_needs("--cold-endpoint", cold_endpoint, "--cold-bucket", cold_bucket)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ForeignTextFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("aiohttp.server").addFilter(PeerNoise())
    try:
        host, port = _parse_listen(listen)
        config = NodeConfig(
            home=home,
            host=host,
            port=port,
            advertise_url=advertise.rstrip("/") or None,
            bulk_port=_choose_bulk_port(bulk_port, advertise),
            capacity_bytes=parse_size(capacity),
            floor_bytes=parse_size(keep_free),
            ram=ram,
            ram_bytes=parse_size(ram_bytes),
            funds_deadline_seconds=funds_deadline,
            rejoins=rejoins,
            cold_bucket=cold_bucket or None,
            cold_bucket_options=(("endpoint", cold_endpoint),) if cold_endpoint else (),
            repair_bytes_per_second=max(1, parse_size(repair_rate)),
            scrub_bytes_per_second=parse_size(scrub_rate) or None,
            audit_every_blocks=audit_every,
            accusations=_make_policy(challenge_after, challenge_every, audit_every) if has_challenges else None,
        )
        parse_tokens(bond)
    except (ValueError, StorageError) as error:
        _fail(error, BAD_INPUT, as_json)
    try:
        _run(config, chain, key_file, trace, as_json, bond=parse_tokens(bond))
    except (NotAFile, KeyFileError) as error:
        _fail(error, BAD_INPUT, as_json)
    except NotFunded as error:
        _fail(error, NOT_FUNDED, as_json)
    except WrongChain as error:
        _fail(error, WRONG_CHAIN, as_json)
    except HomeInUse as error:
        _fail(error, HOME_IN_USE, as_json)
    except (StorageError, BindingError, OSError) as error:
        _fail(error, FAILED, as_json)


@app.command()
def status(
    url: Annotated[str, typer.Option(help="The node's URL; by default this machine's, or a devnet's first.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a node keeps and how it stands with the chain."""
    try:
        value = fetch_status(url)
        rows = describe_status(value)
    except (OSError, ValueError) as error:
        _fail(
            StorageError(
                f"{url or ' and '.join(LOCAL_URLS)} gave no status: {error}; next: give its --url (localnet status "
                "names a devnet's), or: is storage-node start running there?"
            ),
            NOT_REACHED,
            as_json,
        )
    if as_json:
        print(json.dumps(value))
        return
    _print_status(rows)


@app.command()
def retire(
    key_file: Annotated[Path, typer.Option(help="The operator's key, such as HOME/operator.key.")],
    chain: Chain = DEFAULT_CHAIN,
    take_bond: Annotated[bool, typer.Option("--take-bond", help="Take the bond back, once it is free.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take no new seat from the next epoch on; with --take-bond, end for good. Says when the bond comes back."""
    client = ChainClient(chain)
    try:
        sender = Sender(client, unlock_key(key_file))
        if take_bond:
            outcome = sender.send("Storage", "withdrawNodeBond")
            amount = int(outcome.event("NodeBondWithdrawn").fields["amount"])
            _say({"event": "bond taken back", "amount": format_wei(amount)}, as_json)
            return
        _retire(client, sender)
        _say_leaving({"event": "retiring", **_get_outlook(client, sender.address)}, as_json)
    except ContractError as error:
        _fail(_explain_lock(error, client, load_address(key_file, ask_password)), FAILED, as_json)
    except KeyFileError as error:
        _fail(error, BAD_INPUT, as_json)
    except (BindingError, OSError) as error:
        _fail(error, FAILED, as_json)
    finally:
        client.close()


@app.command()
def drain(
    key_file: Annotated[Path, typer.Option(help="The operator's key, such as HOME/operator.key.")],
    chain: Chain = DEFAULT_CHAIN,
    url: Annotated[str, typer.Option(help="The node's URL.")] = LOCAL_URLS[0],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nothing is kept any more.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Retire and watch what is still kept; the node must run until then, or it is slashed."""
    client = ChainClient(chain)
    try:
        sender = Sender(client, unlock_key(key_file))
        _retire(client, sender)
        while True:
            try:
                num_shards, used_bytes = get_kept(fetch_status(url))
            except (OSError, ValueError) as error:
                problem = f"{url} gave no status: {error}; next: start the node again, a draining node must run"
                _fail(StorageError(problem), NOT_REACHED, as_json)
            kept = {"shards": str(num_shards), "bytes": str(used_bytes)}
            _say_leaving({"event": "draining", **kept, **_get_outlook(client, sender.address, num_shards)}, as_json)
            if not wait or num_shards == 0:
                return
            time.sleep(DRAIN_SECONDS)
    except KeyFileError as error:
        _fail(error, BAD_INPUT, as_json)
    except (BindingError, OSError) as error:
        _fail(error, FAILED, as_json)
    finally:
        client.close()


@app.command()
def doctor(
    home: Annotated[Path, typer.Option(help="Where keys, shards and index lie; the node must not run.")],
    cold_bucket: Annotated[str, typer.Option(help="Bucket for cold shards, as at start.")] = "",
    cold_endpoint: ColdEndpoint = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read every shard of a home, change nothing, and say what is wrong; exit code 7 when something is."""
    check_needs("--cold-endpoint", cold_endpoint, "--cold-bucket", cold_bucket)
    try:
        if not (home / "index").is_dir():
            raise FileNotFoundError(f"{home} is no home of a storage node: it has no index; next: give another --home")
        shelf = open_shelf(cold_bucket or None, (("endpoint", cold_endpoint),) if cold_endpoint else ())
        with lock_home(home):
            broken = find_broken_databases(home)
            if broken:
                problem = f"{'; '.join(broken)}; next: start the node: it sets them aside, finds or repairs its shards"
                _fail(StorageError(problem), UNWELL, as_json)
            engine = StoreEngine(home, capacity_bytes=1 << 62, shelf=shelf)
            try:
                found = diagnose(engine)
            finally:
                engine.close()
    except (FileNotFoundError, NotAFile) as error:
        _fail(error, BAD_INPUT, as_json)
    except HomeInUse as error:
        _fail(error, HOME_IN_USE, as_json)
    except (StorageError, OSError) as error:
        _fail(error, FAILED, as_json)
    advice = found.get_advice()
    if as_json:
        print(json.dumps({**asdict(found), "advice": advice}))
    else:
        print(f"{found.good} of {found.num_shards} shards are good, {format_size(found.num_bytes)}")
        for line in (*found.missing, *found.damaged):
            print(f"  bad: {line}")
        print("\n".join(advice) or "nothing to do")
    if advice:
        raise SystemExit(UNWELL)


def main() -> None:
    """Run the command line."""
    app()


def _retire(client: ChainClient, sender: Sender) -> None:
    """Retire the sender's node, once."""
    if client.storage.node(sender.address).state is not StorageNodeState.RETIRING:
        sender.send("Storage", "retireNode")


def _get_outlook(client: ChainClient, operator: str, num_shards: int | None = None) -> dict[str, str]:
    """Return bond, when it is free and what to do, for people."""
    account, height, epoch = client.storage.node_account(operator), client.height(), client.storage.epoch()
    found = explain_bond(
        bond=account.bond,
        free_height=account.free_height,
        num_challenges=account.num_challenges,
        last_epoch=account.last_epoch,
        epoch=epoch,
        height=height,
        num_shards=num_shards,
    )
    return {"bond": format_wei(account.bond), "bond free": found.when, "next": found.next_step}


def _explain_lock(error: ContractError, client: ChainClient, operator: str) -> Exception:
    """Return an error that says when a locked bond is free; any other as it is."""
    if error.name not in ("BondLocked", "BondTooSmall"):
        return error
    try:
        found = _get_outlook(client, operator)
    except BindingError:
        return error
    return StorageError(
        f"the bond of {operator}, {found['bond']}, is free: {found['bond free']}; next: {found['next']}"
    )


def _run(
    config: NodeConfig, urls: list[str], key_file: Path | None, trace: Path | None, as_json: bool, *, bond: int
) -> None:
    config.home.mkdir(parents=True, exist_ok=True)
    path = key_file if key_file is not None else config.home / "operator.key"
    private_key = load_or_create_operator_key(path)
    receipt_key = load_or_create_receipt_key(config.home / "receipt.key")
    # Two clients: a transaction that waits for its block must not hold up the collector's questions.
    watching, registering = ChainClient(urls), ChainClient(urls)
    sender, asking = Sender(registering, private_key), RpcChain(watching)
    address = address_of(private_key)

    def on_listen(url: str) -> None:
        _say({"event": "listening", "url": url, "operator": address, "key": receipt_key.public.hex()}, as_json)

    writer = FileTrace(trace) if trace is not None else None
    try:
        asyncio.run(
            run_node(
                config,
                asking,
                receipt_key,
                registration=RpcRegistration(registering, sender, bond=bond),
                keeping=asking,
                challenges=RpcChallenges(registering, sender),
                address=address,
                trace=writer,
                on_listen=on_listen,
            )
        )
    finally:
        watching.close()
        registering.close()
        if writer is not None:
            writer.close()
    _say({"event": "stopped"}, as_json)


def _make_policy(strikes: int, every_blocks: int, audit_every: int) -> AccusationPolicy:
    """Return when to challenge; the failures must span all but one of the audits that they are counted in."""
    return AccusationPolicy(strikes=strikes, min_blocks=max(0, strikes - 1) * audit_every, every_blocks=every_blocks)


def _choose_bulk_port(asked: int | None, advertise: str) -> int | None:
    """Return the port as the node takes it: behind an advertised URL, which may be a proxy's, none unless asked for."""
    if asked is None:
        return None if advertise else 0
    return None if asked < 0 else asked


def _parse_listen(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--listen {text!r}, expected host:port; next: try 127.0.0.1:9001")
    return host.strip("[]"), int(port)


def _print_status(rows: list[tuple[str, str]]) -> None:
    table = Table(show_header=False, box=None)
    for name, text in rows:
        table.add_row(name, Text(text))  # no mark-up: a stranger wrote it
    Console().print(table)


def _say(value: dict[str, str], as_json: bool) -> None:
    print(json.dumps(value) if as_json else ", ".join(f"{name} {text}" for name, text in value.items()), flush=True)


def _say_leaving(value: dict[str, str], as_json: bool) -> None:
    """Say how a node that leaves stands: what it keeps, when its bond is free, what to do."""
    if as_json:
        return _say(value, as_json)
    kept = f": {value['shards']} shards kept, {format_size(int(value['bytes']))}" if "shards" in value else ""
    print(
        f"{value['event']}{kept}\nbond: {value['bond']}; free: {value['bond free']}\nnext: {value['next']}", flush=True
    )
    return None


def _fail(error: Exception, code: int, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
    else:
        print(describe_failure(error), file=sys.stderr)
    raise SystemExit(code)


take_alone(app)

if __name__ == "__main__":
    main()
