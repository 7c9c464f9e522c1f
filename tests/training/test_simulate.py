"""The simulation that tunes recipes: every round printed, every worker on one root."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from da.codec import encode_blob
from da.core.merkle import BULK_LEAF_BYTES
from da.core.scheme import compute_scheme
from training.attack_kind import AttackKind
from training.baselines import train_allreduce
from training.cli import app
from training.commands import simulation
from training.commands.simulation import load_any_recipe
from training.core.canonical import create_genesis
from training.core.errors import TextDigestError
from training.core.payload import plan_payload
from training.core.recipe import Q15_ONE, CodecKind, OuterRecipe
from training.core.recipe_text import compute_recipe_digest, parse_recipe
from training.core.schedule import plan_steps
from training.data.corpus import Corpus, load_corpus
from training.recipes.shapes import RECIPES
from training.recipes.shipped import load_shipped, shipped_names
from training.simulate import compute_traffic, load_recipe, main, make_members, simulate
from training.worker.errors import Fatal
from training.worker.folder import About, save_model_folder


def test_simulation_prints_a_line_a_round(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.train.tobytes())
    monkeypatch.setattr("sys.argv", ["simulate", "tiny", "--data", str(text)])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in lines] == list(range(16))
    losses = [float(re.search(r"held-out (\S+)", line)[1]) for line in lines]  # type: ignore[index]
    assert losses[-1] < losses[0] < 6


def test_the_readme_s_lines_for_a_notebook_run_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    source = next(block for block in blocks if "training.simulate" in block)
    exec(compile(source, "README.md", "exec"), {})
    *rounds, loss = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in rounds] == list(range(16))
    assert float(loss) < 4.5 < 8 * log(2), "below the even guess"


def test_command_counts_bytes_exactly(corpus: Corpus, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.train.tobytes())
    arguments = ["simulate", "tiny", "--workers", "3", "--rounds", "4", "--data", str(text), "--seats", "6", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [line["round"] for line in document["rounds"]] == [0, 1, 2, 3]
    recipe = load_recipe("tiny")
    sizes = [plan_payload(recipe, create_genesis(recipe), t, rank=recipe.codec.rank).num_bytes for t in range(4)]
    assert [line["payload_bytes"] for line in document["rounds"]] == sizes
    assert document["traffic"]["down_bytes"] == 2 * sum(sizes)
    assert document["traffic"]["up_bytes"] == sum(_count_shard_bytes(size, 6) for size in sizes)
    assert document["root"].startswith("0x")


@pytest.mark.parametrize("num_seats", [1, 3, 4, 5, 6, 7, 12, 64])
@pytest.mark.parametrize("payload_bytes", [0, 1, 2, 3, 5, 63, 4_097])
def test_counted_uploads_are_the_shards_that_the_encoder_makes(payload_bytes: int, num_seats: int) -> None:
    assert compute_traffic(payload_bytes, 2, num_seats).up_bytes == _count_shard_bytes(payload_bytes, num_seats)


def _count_shard_bytes(size_bytes: int, num_seats: int) -> int:
    """Encode a blob as it is dispersed, and measure what there is to send."""
    scheme = compute_scheme(num_seats)
    encoded = encode_blob(
        bytes(size_bytes), num_data=scheme.num_data, num_shards=scheme.num_shards, leaf_bytes=BULK_LEAF_BYTES
    )
    return sum(len(piece) for shard in encoded.shards for piece in shard)


def test_command_shows_an_attack(corpus: Corpus, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.train.tobytes())
    options = ["--workers", "4", "--rounds", "2", "--data", str(text)]
    result = CliRunner().invoke(app, ["simulate", "tiny", *options, "--attack", "sign_flip"])
    assert result.exit_code == 0, result.output
    assert "clipped 1000" in result.output
    refused = CliRunner().invoke(app, ["simulate", "tiny", *options, "--attack", "zero", "--attackers", "4"])
    assert refused.exit_code == 2
    assert "loading" not in refused.output


def test_an_attack_there_is_not_is_refused_before_anything_loads() -> None:
    refused = CliRunner().invoke(app, ["simulate", "tiny", "--attack", "foo"])
    assert refused.exit_code == 2
    assert "loading" not in refused.output
    listed = CliRunner().invoke(app, ["simulate", "--help"], env={"COLUMNS": "200"}).output
    assert all(kind.value in refused.output and kind.value in listed for kind in AttackKind)


@pytest.mark.parametrize(("codec", "is_larger"), [("vector", True), ("dense_int4", False)])
def test_a_flush_round_has_no_train_loss(corpus: Corpus, tmp_path: Path, codec: str, is_larger: bool) -> None:
    """It was shown as 0.0000, the best loss there is."""
    text, recipe = tmp_path / "text.txt", tmp_path / "short.toml"
    text.write_bytes(corpus.train.tobytes())
    recipe.write_text(re.sub(r"num_rounds = \d+", "num_rounds = 2", set_codec(load_shipped("tiny"), codec)))
    options = ["simulate", str(recipe), "--workers", "1", "--data", str(text)]
    said = CliRunner().invoke(app, options).output
    assert len(re.findall(r"train \d", said)) == 2
    assert len(re.findall(r"held-out \S+  flush ", said)) == 4
    assert "train 0.0000" not in said
    assert "the last 4 rounds have no inner steps and send what is left over" in said
    assert ("as dense_int8" in said) is is_larger
    assert "1 worker, " in said
    assert "1 workers" not in said
    document = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert [line["train_micro"] is None for line in document["rounds"]] == [False] * 2 + [True] * 4
    assert {line["rank"] is None for line in document["rounds"]} == {codec == "dense_int4"}


def set_codec(recipe: str, kind: str) -> str:
    return re.sub(r'kind = "[a-z0-9_]+"', f'kind = "{kind}"', recipe)


def test_allreduce_is_the_gradient_of_all_samples(corpus: Corpus) -> None:
    """One worker, nothing compressed, H = 1: the outer loop and AllReduce walk the same way, to float's rounding."""
    recipe = load_recipe("tiny")
    recipe = replace(
        recipe,
        codec=replace(recipe.codec, kind=CodecKind.NONE),
        rounds=replace(recipe.rounds, num_fragments=1, overlap=0, local_steps=4, num_rounds=3),
        outer=OuterRecipe(momentum_end_q15=0, rate_end_q15=Q15_ONE),
    )
    one, _ = simulate(recipe, corpus, 1, num_rounds=3)
    same = train_allreduce(recipe, corpus, 1)
    other = train_allreduce(recipe, corpus, 2)
    for name, theta in one.theta.items():
        assert int((theta.long() - same.theta[name].long()).abs().max()) < 1 << 12, name
    assert any(not torch.equal(same.theta[name], other.theta[name]) for name in same.theta)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nosuch", r"no recipe 'nosuch'"),
        ("nosuch.toml", r"nosuch\.toml can't be read: No such file"),
        ("10M", r"10M is a shape, not a recipe file"),
    ],
)
def test_invalid_recipe_is_named_with_what_there_is(name: str, said: str) -> None:
    """As `run create` says it: a missing file was taken for a shipped recipe of that name."""
    with pytest.raises(Fatal, match=said) as caught:
        load_recipe(name)
    assert "TOML" in caught.value.next_step or "trainer recipe 10M" in caught.value.next_step


def test_what_recipe_prints_can_be_simulated_by_its_name() -> None:
    for name in [*RECIPES, *shipped_names()]:
        printed = CliRunner().invoke(app, ["recipe", name])
        assert load_any_recipe(name) == parse_recipe(printed.stdout), name
    with pytest.raises(Fatal, match="no recipe '8B'"):
        load_any_recipe("8B")


def test_what_is_run_is_said_before_it_is_loaded_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, corpus: Corpus, tmp_path: Path
) -> None:
    """On stderr, with --json too: a Hugging Face model's first round was silent for minutes."""
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.train.tobytes())
    monkeypatch.setattr(simulation, "PROGRESS_SECONDS", 0.0)
    ran = CliRunner().invoke(app, ["simulate", "tiny", "--rounds", "2", "--data", str(text), "--json"])
    assert len(json.loads(ran.stdout)["rounds"]) == 2
    said = ran.stderr.splitlines()
    assert said[0].startswith("tiny: 2 workers, 2 of 16 rounds of 2 steps (none in the last 4), text ")
    assert said[1] == "round    0  worker 1 of 2  step 1 of 2"
    last = re.fullmatch(r"round    1  worker 2 of 2  step (\d+) of (\d+)", said[-1])
    assert last is not None
    assert last[1] == last[2]


@pytest.mark.parametrize(
    ("local_steps", "num_fragments", "said"),
    [
        (8, 4, "2 steps (none in the last 4)"),
        (10, 4, "2 or 3 steps (none in the last 4)"),
        (48, 1, "48 steps (none in the last one)"),
        (3, 3, "1 step (none in the last 3)"),
    ],
)
def test_steps_of_a_round_are_said_as_they_are_made(local_steps: int, num_fragments: int, said: str) -> None:
    rounds = replace(load_recipe("tiny").rounds, local_steps=local_steps, num_fragments=num_fragments)
    assert simulation.describe_steps(rounds) == said
    made = {plan_steps(rounds, round_index, local_steps) for round_index in range(rounds.num_rounds)}
    assert made == {int(number) for number in re.findall(r"[0-9]+", said.partition("(")[0])}


def test_no_text_but_the_recipe_s_is_simulated_or_evaluated(tmp_path: Path, corpus: Corpus) -> None:
    """A digest of zeros trained, and gave a loss, as if it were nobody's."""
    text, recipe = tmp_path / "text.txt", tmp_path / "recipe.toml"
    text.write_bytes(corpus.train.tobytes())
    own = load_corpus(load_recipe("tiny").data, text)
    for digest, is_taken in (("0" * 64, False), (own.digest.hex(), True), ("any", True)):
        written = load_shipped("tiny").replace("[data]\n", f'[data]\ndigest = "{digest}"\n')
        recipe.write_text(written)
        parsed = load_recipe(str(recipe))
        state, folder = create_genesis(parsed), tmp_path / f"model-{digest[:4]}"
        named = {"root": state.root().hex(), "recipe_digest": compute_recipe_digest(written).hex()}
        about = About(chain_id=1, genesis_hash="", run=1, version=0, **named)
        save_model_folder(folder, state=state, recipe_text=written, about=about, replace_existing=False)
        for arguments in (["simulate", str(recipe), "--rounds", "1"], ["evaluate", str(folder)]):
            ran = CliRunner().invoke(app, [*arguments, "--data", str(text)])
            assert (ran.exit_code == 0) == is_taken, (arguments, ran.output)
            if not is_taken:
                assert isinstance(ran.exception, TextDigestError)
                assert (ran.exception.expected, ran.exception.got) == (digest, own.digest.hex())
                assert "next: give the run's text with --data FILE" in str(ran.exception)
        if not is_taken:
            with pytest.raises(TextDigestError):
                simulate(parsed, own, 1, num_rounds=1)


def test_no_more_rounds_than_the_recipe_has() -> None:
    refused = CliRunner().invoke(app, ["simulate", "tiny", "--rounds", "99999999999999999999"])
    assert refused.exit_code == 2
    assert "the recipe has 16" in refused.output


def test_a_round_has_256_workers_at_most(corpus: Corpus) -> None:
    members = make_members(256)
    assert len(set(members)) == 256
    assert {len(member) for member in members} == {20}
    assert members[:255] == [bytes([number]) * 20 for number in range(1, 256)]
    for wrong in (0, 257):
        with pytest.raises(ValueError, match=rf"{wrong} workers, expected 1\.\.256; next: "):
            simulate(load_recipe("tiny"), corpus, wrong)
    refused = CliRunner().invoke(app, ["simulate", "tiny", "--workers", "257"])
    assert refused.exit_code == 2
    assert "256" in refused.output
