"""What ``trainer`` says and with which code it ends, without a chain (CASES 31)."""

from __future__ import annotations

import io
import json
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, Group

from contracts.bindings.errors import UNKNOWN_HEIGHT, ChainUnreachable, ContractError
from contracts.bindings.types import RoundState, RunInfo, RunState, UpdateFate
from training.cli import main
from training.commands import checkpoint, membership, output, runs, status, watch
from training.commands.status import explain_update, find_last_update
from training.commands.timing import BlockPace
from training.core.recipe import ANY_TEXT, DataSource
from training.core.recipe_text import parse_recipe
from training.recipes.shipped import load_shipped

NOWHERE = "http://127.0.0.1:1"
"""Nothing listens on port 1."""


def trainer(monkeypatch: Any, capsys: Any, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainer", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_key_file_is_made_once_and_only_for_its_owner(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "worker.key"
    code, out, _ = trainer(monkeypatch, capsys, "keys", "new", path, "--json")
    assert code == 0
    address = json.loads(out)["address"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code, out, _ = trainer(monkeypatch, capsys, "keys", "show", path)
    assert (code, out.strip()) == (0, address)
    code, _, err = trainer(monkeypatch, capsys, "keys", "new", path)
    assert code == 2
    assert "exists already" in err


@pytest.mark.parametrize(
    "arguments",
    [("run", "list"), ("run", "show", "--run", 1), ("status", "--run", 1), ("watch", "--run", 1, "--once")],
)
def test_no_chain_is_said_with_its_address_and_code_3(
    monkeypatch: Any, capsys: Any, arguments: tuple[Any, ...]
) -> None:
    code, _, err = trainer(monkeypatch, capsys, *arguments, "--chain", NOWHERE)
    assert code == 3
    assert NOWHERE in err
    assert "Traceback" not in err


def test_what_cannot_work_ends_with_code_2_and_the_next_step(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    key = tmp_path / "owner.key"
    trainer(monkeypatch, capsys, "keys", "new", key)
    create = ("run", "create", "--chain", NOWHERE, "--key-file", key)
    own = tmp_path / "own.toml"
    own.write_text(load_shipped("tiny").replace("python_stdlib", "file"))
    small, named = tmp_path / "small.txt", tmp_path / "named.toml"
    small.write_bytes(b"too short")
    named.write_text(own.read_text().replace('"file"', '"file"\ndigest = "any"'))
    for arguments, expected in (
        ((*create, "no-such-recipe"), "tiny"),
        ((*create, "0.4M"), "trainer recipe 0.4M > run.toml"),
        ((*create, named, "--data", small), "needs at least"),
        ((*create, named, "--tokenizer", tmp_path / "none.json"), "no tokenizer at"),
        ((*create, named, "--tokenizer", small), "leave --tokenizer out"),
        ((*create, "tiny", "--reward", "1"), "--allow"),
        ((*create, own), "trainer data digest --recipe"),
        ((*create, "tiny", "--escrow", "1,5"), "no amount"),
        ((*create, "tiny", "--min-members", "9", "--max-members", "3"), "--max-members"),
        (("run", "create", "tiny", "--key-file", tmp_path / "none.key"), "trainer keys new"),
        (("evaluate", tmp_path), "checkpoint pull"),
        (("generate", tmp_path / "nomodel"), "check the path, or pull a model: trainer checkpoint pull"),
        (("recipe", tmp_path), "is a folder without config.json"),
        (("join", "--run", "0", "--key-file", key), "--run"),
    ):
        code, _, err = trainer(monkeypatch, capsys, *arguments)
        assert code == 2, (arguments, err)
        assert expected in err, (arguments, err)


def test_tables_in_a_pipe_end_no_line_in_blanks(capsys: Any) -> None:
    output.print_pairs("run 1", [("state", "running"), ("a longer name", "x")])
    output.print_table("members", ("worker", "state"), [("0xab", "active"), ("0xcd", "left")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["run 1", "state          running", "a longer name  x"]
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (load_shipped("tiny").encode(), "tiny, 6,"),
        (load_shipped("tiny").replace('name = "tiny"', f'name = "{"x" * 60}"').encode(), "x" * 23 + "…, 6,"),
        (b"of = 'another version'", "?"),
    ],
)
def test_runs_are_listed_by_what_they_train(monkeypatch: Any, capsys: Any, recipe: bytes, expected: str) -> None:
    """A number and an owner told nobody which run is which; `0 of 0` members was no answer."""
    params = SimpleNamespace(min_members=1, reward_per_update=0)
    info = SimpleNamespace(
        run=1,
        state=RunState.CREATED,
        num_settled=0,
        num_rounds_total=9,
        num_members=0,
        num_eligible=0,
        escrow=5 * 10**18,
        owner="0x" + "ab" * 20,
        params=params,
    )
    training = SimpleNamespace(num_runs=lambda: 1, run=lambda _: info, recipe=lambda _: recipe)
    monkeypatch.setattr(runs, "ChainClient", lambda _: SimpleNamespace(training=training))
    code, out, _ = trainer(monkeypatch, capsys, "run", "list", "--chain", NOWHERE)
    assert code == 0
    assert expected in out
    assert "none yet" in out


def test_a_bar_that_nobody_sees_leaves_no_empty_line(capsys: Any) -> None:
    with output.create_progress() as progress:
        progress.advance(progress.add_task("storing", total=1))
    assert capsys.readouterr() == ("", "")


def test_a_sample_longer_than_a_model_s_positions_is_refused(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    """Where the recipe is printed, and where a run of one that somebody changed is created."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    config, longer = tmp_path / "config.json", tmp_path / "longer.toml"
    config.write_text(
        '{"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 256, '
        '"bos_token_id": 0, "eos_token_id": 0}'
    )
    code, out, _ = trainer(monkeypatch, capsys, "recipe", config)
    assert (code, "context = 32\n" in out) == (0, True)
    assert trainer(monkeypatch, capsys, "recipe", tmp_path)[:2] == (0, out), "the folder does, too"
    longer.write_text(out.replace("context = 32", "context = 33"))
    create = ("run", "create", longer, "--chain", NOWHERE, "--key-file", tmp_path / "owner.key")
    for arguments in (("recipe", config, "--context", "33"), create):
        code, _, err = trainer(monkeypatch, capsys, *arguments)
        assert code == 2, (arguments, err)
        assert "is 33, expected at most 32" in err


def test_a_recipe_with_an_unknown_key_names_the_nearest(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "x"\nsede = 1\n')
    code, _, err = trainer(monkeypatch, capsys, "run", "create", recipe, "--key-file", tmp_path / "k")
    assert code == 2
    assert "seed" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--run", 99),
        ("run", "show", "--run", 99),
        ("run", "pause", "--run", 99, "--key-file", "KEY"),
        ("run", "fund", "5", "--run", 99, "--key-file", "KEY"),
        ("run", "allow", "0x" + "ab" * 20, "--run", 99, "--key-file", "KEY"),
        ("watch", "--run", 99, "--once"),
        ("leave", "--run", 99, "--key-file", "KEY"),
        ("checkpoint", "list", "--run", 99),
        ("checkpoint", "pull", "--run", 99, "--out", "model"),
    ],
)
def test_an_unknown_run_is_said_alike_everywhere(
    monkeypatch: Any, capsys: Any, tmp_path: Path, arguments: tuple[Any, ...]
) -> None:
    """The view answers zeros for a run that is not there (ABI); people get the number and the next command."""

    class NoRuns:
        def __init__(self, urls: object) -> None:
            self.training = self

        def height(self) -> int:
            return 7

        def run(self, run: int) -> Any:
            return SimpleNamespace(run=run, state=RunState.NONE)

    for module in (status, runs, watch, membership, checkpoint):
        monkeypatch.setattr(module, "ChainClient", NoRuns)
    key = tmp_path / "owner.key"
    trainer(monkeypatch, capsys, "keys", "new", key)
    code, _, err = trainer(monkeypatch, capsys, *(key if part == "KEY" else part for part in arguments))
    assert (code, err) == (2, "error: there is no run 99\nnext:  trainer run list\n")


def test_join_says_that_there_is_no_such_run_before_it_loads_torch(
    monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    """Torch takes seconds to load, half a minute on a busy machine."""

    class NoRuns:
        def __init__(self, urls: object, *, timeout_seconds: float) -> None:
            assert timeout_seconds <= 2, "who doesn't answer holds nothing up"
            self.training = self

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, run: int) -> Any:
            return SimpleNamespace(run=run, state=RunState.NONE)

    monkeypatch.setattr(membership, "ChainClient", NoRuns)
    monkeypatch.setitem(sys.modules, "training.worker.process", None)  # an import of it fails
    key = tmp_path / "worker.key"
    trainer(monkeypatch, capsys, "keys", "new", key)
    code, _, err = trainer(monkeypatch, capsys, "join", "--run", 99, "--key-file", key)
    assert code == 2
    assert err.endswith("error: there is no run 99\nnext:  trainer run list\n")


def test_a_bond_whose_block_is_not_known_yet_is_said_in_words() -> None:
    """Who left while a round of its was open was told of block 18446744073709551615, in 9e16 minutes."""
    pace = BlockPace(block_seconds=0.3, num_proposers=1)
    member: Any = SimpleNamespace(bond_unlock_height=UNKNOWN_HEIGHT)
    said = membership.describe_lock(member, 100, 200, pace)
    assert said == "is free 200 blocks (about 60 s) after the rounds that it takes part in have settled"
    member.bond_unlock_height = 300
    assert membership.describe_lock(member, 100, 200, pace) == "is free from block 300, in about 60 s"


def test_a_finished_run_takes_nobody_on_its_list(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    """It was said to be done, in a block, and nothing ever came of it."""

    class Finished:
        def __init__(self, urls: object) -> None:
            self.training = self

        def run(self, run: int) -> SimpleNamespace:
            return SimpleNamespace(state=RunState.FINISHED)

    monkeypatch.setattr(runs, "ChainClient", Finished)
    key = tmp_path / "owner.key"
    trainer(monkeypatch, capsys, "keys", "new", key)
    code, _, err = trainer(monkeypatch, capsys, "run", "allow", "0x" + "ab" * 20, "--run", 1, "--key-file", key)
    assert code == 2
    assert "run 1 has finished" in err
    assert "next:" in err


def test_pay_is_said_when_a_run_is_created() -> None:
    assert "nobody is paid" in runs.describe_pay(0, 50 * 10**18)
    assert "--allow ADDRESS --reward TOKENS" in runs.describe_pay(0, 50 * 10**18)
    assert "paid 0.5 tokens" in runs.describe_pay(5 * 10**17, 50 * 10**18)
    assert "about 100" in runs.describe_pay(5 * 10**17, 50 * 10**18)


def test_an_escrow_that_ends_before_the_run_is_said() -> None:
    token = 10**18
    assert runs.describe_short_escrow(token // 2, 10 * token, 20, 1) is None
    assert runs.describe_short_escrow(0, 0, 20, 8) is None
    short = runs.describe_short_escrow(token // 2, 10 * token, 28, 2)
    assert short is not None
    assert "2 members for 10 of 28 rounds, one member for 20 of 28" in short


def test_a_member_is_told_to_give_the_run_s_files() -> None:
    recipe = parse_recipe(load_shipped("tiny"))
    assert runs.describe_files(recipe, None) == ""
    data = replace(recipe.data, source=DataSource.FILE, tokenizer_digest="00" * 32)
    file_run = replace(recipe, data=data)
    assert runs.describe_files(file_run, None) == " --data FILE --tokenizer tokenizer.json"
    assert "--data own.txt" in runs.describe_files(file_run, Path("own.txt"))
    assert "--tokenizer b.json" in runs.describe_files(file_run, Path("own.txt"), Path("b.json"))


def test_who_makes_a_run_of_a_file_is_told_how_much_of_it_is_read() -> None:
    """The recipe's own figures: 12 rounds of H / F = 2 steps, 2 samples of 16 bytes each, is 768 bytes a member."""
    recipe = parse_recipe(load_shipped("tiny"))
    assert runs.describe_text(recipe, None, 2) is None
    file_run = replace(recipe, data=replace(recipe.data, source=DataSource.FILE))
    unseen = runs.describe_text(file_run, None, 2)
    assert unseen is not None
    assert "its size was not checked: --data FILE" in unseen
    assert "refuses one with fewer than 18 bytes" in unseen
    assert "repeated: 2 members read 1,536 bytes (24 steps of 2 samples of 16)" in unseen
    any_text = replace(file_run, data=replace(file_run.data, digest=ANY_TEXT))
    assert "each member brings a text of its own" in str(runs.describe_text(any_text, None, 2))
    seen = runs.describe_text(file_run, 512, 2)
    assert seen is not None
    assert "512 bytes to train on" in seen
    assert "about 3.0 times over" in seen
    assert "0.15 % of it" in str(runs.describe_text(file_run, 1_000_000, 2))
    tokens = replace(file_run, data=replace(file_run.data, tokenizer_digest="00" * 32))
    assert "1,536 tokens" in str(runs.describe_text(tokens, None, 2))


@pytest.mark.parametrize(("width", "num_columns"), [(160, 9), (100, 8), (80, 7), (60, 5)])
def test_a_narrow_terminal_shows_fewer_columns_and_all_of_those(width: int, num_columns: int) -> None:
    columns = ("round", "fragment", "phase", "updates", "votes", "counted", "training loss", "payloads", "root")
    rows = [("12", "3", "open", "2 of 4", "4", "4", "2.1234", "123.45 kB", "0x0123456789ab…")]
    table = watch.fit_table("run 1", columns, rows, width)
    assert len(table.columns) == num_columns
    lines = Console(width=width)
    with lines.capture() as shown:
        lines.print(table)
    assert "123.45 kB" in shown.get()
    assert all(str(column.header) in shown.get() for column in table.columns)
    assert max(len(line) for line in shown.get().splitlines()) <= width


def test_a_watch_into_a_file_is_a_line_a_round(monkeypatch: Any, capsys: Any) -> None:
    """It printed nothing at all until the run's end."""

    def look(num_settled: int, *versions: int, certified: int = 0) -> dict[str, Any]:
        first = max(0, num_settled - watch.SHOWN_ROUNDS + 1)
        rounds = [
            SimpleNamespace(
                round=index,
                fragment=index % 2,
                state=RoundState.FINAL if index < num_settled else RoundState.OPEN,
                settled_height=10 * index,
                num_accepted=2,
                num_eligible=3,
            )
            for index in range(first, num_settled + 1)
        ]
        info = SimpleNamespace(
            run=1,
            state=RunState.FINISHED if num_settled == 12 else RunState.RUNNING,
            num_settled=num_settled,
            num_rounds_total=12,
            num_eligible=3,
            num_members=3,
            head_version=num_settled,
            certified_version=certified,
        )
        return {
            "height": 99,
            "run": info,
            "rounds": rounds,
            "updates": [[SimpleNamespace(tokens=8, loss_micro=2_500_000)]] * len(rounds),
            "evaluations": [SimpleNamespace(version=version, loss_micro=1_250_000) for version in versions],
            "loss_unit": "nats a byte",
        }

    end = [look(12, 2, 10), look(12, 2, 10, certified=8), look(12, 2, 10, certified=12)]
    looks = iter([look(2), look(2), look(3), look(3, 2), ChainUnreachable([("URL", "refused")]), *end])

    def fetch(*_: object) -> dict[str, Any]:
        found = next(looks)
        if isinstance(found, ChainUnreachable):
            raise found
        return found

    monkeypatch.setattr(watch, "fetch_look", fetch)
    code, out, _ = trainer(monkeypatch, capsys, "watch", "--run", 1, "--every", "0.2", "--chain", NOWHERE)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("run 1, running, block 99: settled 2 of 12")
    assert lines[1] == "round 2, fragment 0: final in block 20, 2 of 3 counted, training loss 2.5000"
    assert lines[2] == "version 2: held-out loss 1.2500 nats a byte"
    assert "asking again" in lines[3]
    assert lines[4] == "rounds 3 to 4 settled meanwhile"
    assert [line.split(",")[0] for line in lines[5:12]] == [f"round {index}" for index in range(5, 12)]
    assert lines[12] == "version 10: held-out loss 1.2500 nats a byte"
    assert lines[13].startswith("run 1, finished, block 99: settled 12 of 12")
    assert len(lines) == 14
    assert next(looks, None) is None, "the last checkpoint is waited for"


def test_a_finished_run_is_looked_at_until_its_last_checkpoint_or_for_half_a_minute(monkeypatch: Any) -> None:
    now = 100.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    running, open_end, end = (
        cast("RunInfo", SimpleNamespace(state=state, head_version=12, certified_version=certified))
        for state, certified in ((RunState.RUNNING, 12), (RunState.FINISHED, 8), (RunState.FINISHED, 12))
    )
    ending = watch.Ending()
    assert [ending.is_over(run) for run in (running, open_end, end)] == [False, False, True]
    now += watch.LAST_CHECKPOINT_SECONDS - 1
    assert not ending.is_over(open_end)
    now += 1
    assert ending.is_over(open_end)


def test_a_long_line_of_a_watch_goes_on_in_the_next(monkeypatch: Any) -> None:
    """The newest losses stand at its end, and were cut."""
    console = Console(width=40, soft_wrap=True, force_terminal=False, file=io.StringIO())
    losses = "losses: " + " ".join(f"v{number} 1.2345" for number in range(0, 40, 4))
    console.print(Group(watch._make_line(losses)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 40
    assert " ".join(map(str.strip, lines)) == losses


@pytest.mark.parametrize(
    ("state", "due", "said"),
    [
        (RoundState.OPEN, 0, "the round is still open, and its time runs from when round 4 closes"),
        (RoundState.OPEN, 90, "the round is still open, until block 90 at the latest; then the members vote"),
        (RoundState.REVEAL, 0, "keys are being revealed; it goes on when round 4 has settled"),
        (RoundState.ATTEST, 0, "it is decided after round 4, which has not settled yet"),
        (RoundState.ATTEST, 90, "2 votes, attempt 1), until block 90 at the latest"),
        (RoundState.DISPUTE, 90, "decided by block 90 at the latest"),
    ],
)
def test_a_pending_update_is_told_what_it_waits_for(state: RoundState, due: int, said: str) -> None:
    info: Any = SimpleNamespace(round=5, state=state, due_height=due, num_votes=2, retries=0)
    update: Any = SimpleNamespace(fate=UpdateFate.PENDING)
    text = explain_update(update, info)
    assert text.startswith("pending: ")
    assert said in text
    assert "block 0" not in text


def test_a_last_update_is_looked_for_as_far_back_as_the_node_shows() -> None:
    """A node that began from a snapshot refuses older rounds; that is no failure of `trainer status`."""

    def update(run: int, index: int, worker: str) -> Any:
        asked.append(index)
        if index < 7:
            raise ContractError(refusal, {}, f"round {index}")
        return SimpleNamespace(fate=UpdateFate.NONE)

    asked: list[int] = []
    client: Any = SimpleNamespace(training=SimpleNamespace(update=update))
    refusal = "RoundArchived"
    assert find_last_update(client, 1, 10, "0x") is None
    assert asked == [9, 8, 7, 6]
    refusal = "UnknownRun"
    with pytest.raises(ContractError, match="round 6"):
        find_last_update(client, 1, 10, "0x")
