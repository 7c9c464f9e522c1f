"""Two workers with one key on one machine: the second is told, before it sends anything (case 25)."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.worker.errors import EXIT_FATAL, KeyInUse
from training.worker.journal import Journal, JournalContents
from training.worker.process import choose_home, hold_key

ADDRESS = "0x" + "Ab" * 20


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".archipelago" / "locks"


def test_a_second_worker_with_the_key_is_told_who_holds_it(locks: Path) -> None:
    with hold_key(b"\x01" * 32, 7, ADDRESS, Path("/some/home")):
        with pytest.raises(KeyInUse) as raised, hold_key(b"\x01" * 32, 7, ADDRESS.lower(), Path("/another")):
            pytest.fail("both hold it")
        assert raised.value.exit_code == EXIT_FATAL
        assert ADDRESS.lower() in raised.value.message.lower()
        assert "/some/home" in raised.value.message
        assert "trainer keys new" in raised.value.next_step
        for other in ((b"\x02" * 32, 7, ADDRESS), (b"\x01" * 32, 8, ADDRESS), (b"\x01" * 32, 7, "0x" + "cd" * 20)):
            with hold_key(*other, Path("/another")):
                pass  # another chain, another run, another key: nobody's business
    with hold_key(b"\x01" * 32, 7, ADDRESS, Path("/another")):
        pass  # free again


def test_without_a_place_for_locks_the_worker_starts_and_says_so(locks: Path, caplog: pytest.LogCaptureFixture) -> None:
    locks.parent.mkdir()
    locks.write_text("no folder")
    with caplog.at_level("WARNING", logger="trainer"), hold_key(b"\x01" * 32, 7, ADDRESS, Path("/some/home")):
        assert str(locks) in caplog.text


def test_a_default_home_is_a_chain_s_and_an_older_one_is_kept(locks: Path) -> None:
    """After a reset run 1 is another run; a folder from before, by run and key, is used for its own chain."""
    first, second = b"\x01" * 32, b"\x02" * 32
    assert choose_home(first, 1, ADDRESS) != choose_home(second, 1, ADDRESS)
    older = locks.parent / "run-1" / ADDRESS.lower()
    older.mkdir(parents=True)
    contents = JournalContents(genesis_hash=first.hex(), run=1, recipe_digest="00" * 32)
    Journal(older, contents).reset()
    assert choose_home(first, 1, ADDRESS) == older
    assert choose_home(second, 1, ADDRESS) == locks.parent / "chain-02020202" / "run-1" / ADDRESS.lower()
    (older / "journal.json").write_text("damaged")
    assert choose_home(first, 1, ADDRESS) != older
