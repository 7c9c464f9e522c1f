"""The simulation that tunes recipes: every round printed, every worker on one root."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from training.baselines import train_allreduce
from training.cli import app
from training.commands import simulation
from training.commands.simulation import load_any_recipe
from training.core.canonical import create_genesis
from training.core.payload import plan_payload
from training.core.recipe import Q15_ONE, CodecKind, OuterRecipe
from training.core.recipe_text import parse_recipe
from training.data.corpus import Corpus
from training.recipes.shapes import RECIPES
from training.recipes.shipped import shipped_names
from training.simulate import load_recipe, main, simulate
from training.worker.errors import Fatal


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
    assert document["traffic"]["up_bytes"] == sum(-(-size * 6 // 4) for size in sizes)
    assert document["root"].startswith("0x")


def test_command_shows_an_attack(corpus: Corpus, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.train.tobytes())
    options = ["--workers", "4", "--rounds", "2", "--data", str(text)]
    result = CliRunner().invoke(app, ["simulate", "tiny", *options, "--attack", "sign_flip"])
    assert result.exit_code == 0, result.output
    assert "clipped 1000" in result.output
    refused = CliRunner().invoke(app, ["simulate", "tiny", *options, "--attack", "zero", "--attackers", "4"])
    assert refused.exit_code == 2


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
    assert said[0].startswith("tiny: 2 workers, 2 of 16 rounds of up to 8 steps, text ")
    assert said[1] == "round    0  worker 1 of 2  step 1 of 2"
    last = re.fullmatch(r"round    1  worker 2 of 2  step (\d+) of (\d+)", said[-1])
    assert last is not None
    assert last[1] == last[2]


def test_no_more_rounds_than_the_recipe_has() -> None:
    refused = CliRunner().invoke(app, ["simulate", "tiny", "--rounds", "99999999999999999999"])
    assert refused.exit_code == 2
    assert "the recipe has 16" in refused.output
