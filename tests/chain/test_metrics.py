"""What the application counts: every request, every code, and the file that JSON-RPC shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from abci_driver import Driver
from prometheus_client.parser import text_string_to_metric_families

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.abci.metrics import FILE_NAME, HELP, PREFIX, MeteredApplication, read_metrics
from chain.abci.server import HANDLED_NAMES
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis


def _read(home: Path) -> dict[tuple[str, str], float]:
    samples = {}
    for family in text_string_to_metric_families(read_metrics(home).decode()):
        for sample in family.samples:
            samples[sample.name, ",".join(sample.labels.values())] = sample.value
    return samples


def test_requests_codes_and_times_are_counted(tmp_path: Path, app_state: dict[str, Any], alice: Any) -> None:
    assert read_metrics(tmp_path) == b""
    store = Store(tmp_path / "app", map_bytes=16 << 20)
    inner = ChainApplication(store, CONTRACTS, process_system_genesis)
    driver = Driver(inner, app_state)
    driver.init_chain()
    ticks = iter(range(10**6))
    metered = MeteredApplication(inner, tmp_path / FILE_NAME, clock=lambda: next(ticks) * 0.25)
    handlers = {name: metered.get_handler(name) for name in HANDLED_NAMES}
    raw = alice.raw(0)
    plain = inner.process_check_tx(pb.RequestCheckTx(tx=raw))
    assert handlers["check_tx"](pb.RequestCheckTx(tx=raw)).code == plain.code == 0
    assert handlers["check_tx"](pb.RequestCheckTx(tx=b"nonsense")).code != 0
    reverting = alice.raw(1, to="0x0000000000000000000000000000000000001002", data=b"\xff" * 4, value=0, gas=100_000)
    for height, txs in ((1, [raw, reverting]), (2, [])):
        request = pb.RequestFinalizeBlock(txs=txs, height=height, hash=bytes(32), proposer_address=b"\x99" * 20)
        request.time.seconds = 1_700_000_000 + height
        handlers["finalize_block"](request)
        handlers["commit"](pb.RequestCommit())
    (tmp_path / FILE_NAME).write_bytes(metered.render())
    store.close()
    families = [each for each in text_string_to_metric_families(metered.render().decode()) if each.type != "unknown"]
    help_of = {each.name: each.documentation for each in families if not each.name.endswith("_created")}
    assert help_of == {PREFIX + name: text for name, text in HELP.items()}
    assert all(len(text.split()) > 3 for text in HELP.values())
    spec = (Path(__file__).parents[2] / "chain/rpc/SPEC.md").read_text()
    assert [name for name in help_of if f"`{name}`" not in spec] == []
    found = _read(tmp_path)
    assert found["archipelago_abci_requests_total", "check_tx"] == 2
    assert found["archipelago_abci_requests_total", "commit"] == 2
    assert found["archipelago_abci_requests_total", "query"] == 0
    assert found["archipelago_abci_request_seconds_total", "finalize_block"] == 0.5
    assert found["archipelago_abci_checks_total", "0"] == 1
    assert sum(value for (name, _), value in found.items() if name == "archipelago_abci_checks_total") == 2
    assert found["archipelago_abci_transactions_total", "0"] == 1
    assert found["archipelago_abci_transactions_total", "1"] == 1
    assert found["archipelago_abci_height", ""] == 2
    assert found["archipelago_abci_block_transactions", ""] == 0
    assert found["archipelago_abci_seconds_bucket", "0.5,finalize_block"] == 2
    assert found["archipelago_abci_seconds_bucket", "0.2,finalize_block"] == 0


def test_file_is_written_once_a_second_at_most_and_a_full_disk_is_survived(tmp_path: Path) -> None:
    class Quiet:
        def attach(self, drain: Callable[[], None]) -> None:
            """Need nothing."""

        def get_handler(self, name: str) -> Any:
            return lambda request: pb.ResponseCommit()

    now = [0.0]
    metered = MeteredApplication(Quiet(), tmp_path / "no-such-folder" / FILE_NAME, clock=lambda: now[0])
    commit = metered.get_handler("commit")
    commit(pb.RequestCommit())
    (tmp_path / "no-such-folder").mkdir()
    now[0] = 0.9
    commit(pb.RequestCommit())
    assert read_metrics(tmp_path / "no-such-folder") == b""
    now[0] = 1.0
    commit(pb.RequestCommit())
    assert _read(tmp_path / "no-such-folder")["archipelago_abci_requests_total", "commit"] == 3
