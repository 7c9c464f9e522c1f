"""Recipes by size, models of transformers, given weights and memory (issue: models and data)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_folders import save_model
from safetensors.torch import save_file

from training.core.canonical import CanonicalState, create_genesis, decode_parts, dequantise, replace_theta
from training.core.errors import MemoryShortError, ModelMismatchError, RecipeValueError, StageCountError, WeightsError
from training.core.layout import build_layout
from training.core.recipe import ANY_TEXT, ModelKind, Recipe
from training.core.recipe_text import parse_recipe
from training.core.sizing import count_parameters
from training.data.corpus import Corpus
from training.group.shape import GroupConfig, check_shape
from training.memory import check_devices, describe_needs, plan_needs
from training.models.start import create_first_state, pick_weight, read_weights
from training.recipes.shapes import RECIPES, create_recipe, create_recipe_for
from training.recipes.writing import write_recipe
from training.simulate import load_recipe, simulate
from training.worker.engine_rules import EngineRules
from training.worker.folder import BadModelFolder, load_model_folder

LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.mark.parametrize("name", list(RECIPES))
def test_recipe_by_size_reads_back(name: str) -> None:
    recipe = create_recipe(name)
    assert parse_recipe(write_recipe(recipe)) == recipe
    layout = build_layout(recipe)
    assert layout.num_parameters == count_parameters(recipe.model)
    nominal = {"0.4M": 0.4e6, "10M": 10e6, "125M": 125e6, "1.3B": 1.3e9, "7B": 7e9}[name]
    assert abs(layout.num_parameters / nominal - 1) < 0.2
    assert all(layout.fragments)


def test_memory_is_the_formula_and_is_held_against_the_device() -> None:
    recipe = create_recipe("1.3B")
    whole = plan_needs(recipe, devices=("cuda:0",))
    (worker,) = whole.processes
    assert worker.inner_bytes == 16 * whole.num_parameters
    room = {"cuda:0": worker.inner_bytes, "cpu": whole.outer_bytes}
    assert f"{worker.inner_bytes / 1e9:.2f} GB" in "\n".join(describe_needs(whole, room))
    check_devices(whole, room)
    with pytest.raises(MemoryShortError, match=r"cuda:0 has .* more --stages or --shards"):
        check_devices(whole, {**room, "cuda:0": worker.inner_bytes - 1})
    with pytest.raises(MemoryShortError, match=r"cpu has"):
        check_devices(whole, {**room, "cpu": whole.outer_bytes - 1})


@pytest.mark.parametrize("group", [GroupConfig(num_stages=4), GroupConfig(num_shards=4)], ids=["stages", "shards"])
def test_memory_of_a_group_is_counted_for_each_process(group: GroupConfig) -> None:
    recipe = create_recipe("1.3B")
    whole = plan_needs(recipe)
    devices = tuple(f"cuda:{index}" for index in range(4))
    needs = plan_needs(recipe, group, devices)
    assert needs.num_parameters == whole.num_parameters
    assert [process.device for process in needs.processes] == list(devices)
    biggest = max(process.inner_bytes for process in needs.processes)
    assert whole.processes[0].inner_bytes / 4 <= biggest < whole.processes[0].inner_bytes / 3
    free = {**dict.fromkeys(devices, biggest), "cpu": needs.outer_bytes}
    check_devices(needs, free)
    lines = describe_needs(needs, free)
    assert all(any(f"{name}{index}" in line for line in lines for name in ("stage ", "shard ")) for index in range(4))
    with pytest.raises(MemoryShortError, match=r"cpu has"):  # on the CPU all share one memory
        check_devices(plan_needs(recipe, group, ("cpu",) * 4), {"cpu": whole.processes[0].inner_bytes})


@pytest.fixture(scope="module", params=[LLAMA, GPT2], ids=["llama", "gpt2"])
def hf_recipe(request: pytest.FixtureRequest) -> Recipe:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    recipe = create_recipe_for(describe_causal_lm(json.dumps(request.param), 16), "hf")
    return replace(
        recipe,
        inner=replace(recipe.inner, batch_size=2),
        rounds=replace(recipe.rounds, num_fragments=2, local_steps=4, num_rounds=2),
    )


def test_hugging_face_model_trains_and_agrees(hf_recipe: Recipe, corpus: Corpus, tmp_path: Path) -> None:
    """Two workers, real rounds; the folder opens in transformers with the same logits and is read back by us."""
    from transformers import AutoModelForCausalLM

    from training.evaluation import build_model

    text = write_recipe(hf_recipe)
    assert parse_recipe(text) == hf_recipe
    assert create_genesis(hf_recipe).root() == create_genesis(parse_recipe(text)).root()
    roots: list[bytes] = []
    state, workers = simulate(hf_recipe, corpus, 2, on_round=lambda done: roots.append(done.settlement.state.root()))
    assert len(set(roots)) == len(roots)
    assert {worker.canonical.root() for worker in workers} == {state.root()}
    folder = tmp_path / "model"
    save_model(folder, hf_recipe, state=state, version=len(roots))
    assert len({each.stat().st_mode for each in folder.iterdir()}) == 1, "all are as public as each other"
    opened = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(opened.eval()(tokens).logits, build_model(hf_recipe, state)(tokens))
    assert load_model_folder(folder).state.root() == state.root()


@pytest.fixture
def own_folder(tmp_path: Path) -> tuple[Path, Recipe, CanonicalState]:
    """A model folder of our GPT, two layers, weights that are all different."""
    recipe = load_recipe("tiny")
    recipe = replace(recipe, model=replace(recipe.model, num_layers=2))
    state = create_genesis(recipe)
    generator = torch.Generator().manual_seed(3)
    theta = {
        name: (each + torch.randint(-(2**20), 2**20, each.shape, generator=generator)).to(torch.int32)
        for name, each in state.theta.items()
    }
    state = replace_theta(state, theta)
    (tmp_path / "given").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "notes.txt"):
        (tmp_path / "given" / name).write_text(f'{{"{name}": 1}}')
    save_model(tmp_path / "model", recipe, tmp_path / "given" / "tokenizer.json", state=state)
    return tmp_path / "model", recipe, state


def test_our_gpt_opens_in_transformers(own_folder: tuple[Path, Recipe, CanonicalState]) -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from transformers import AutoModelForCausalLM

    from training.evaluation import build_model

    folder, recipe, state = own_folder
    opened, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = torch.arange(2 * recipe.model.context).reshape(2, -1)
    with torch.no_grad():
        own = build_model(recipe, state)(tokens)
        torch.testing.assert_close(opened.eval()(tokens).logits, own, rtol=1e-4, atol=1e-4)
    assert float(own.std()) > 0.1, "logits that are all alike show nothing"
    written = opened.generate(tokens[:1, :8], max_new_tokens=6, do_sample=False)
    assert written.shape == (1, 14), "no byte ends the text"


def test_our_gpt_goes_on_as_a_model_of_transformers(own_folder: tuple[Path, Recipe, CanonicalState]) -> None:
    """Its folder is what `trainer recipe FOLDER --weights FOLDER` takes."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm
    from training.models.start import read_weights

    folder, _, state = own_folder
    model = describe_causal_lm((folder / "config.json").read_text(), 16, read_weights(folder))
    recipe = create_recipe_for(model, "on")
    first = create_first_state(recipe, folder)
    name = "model.layers.1.mlp.up_proj.weight"
    expected = dequantise(state)["layers.1.gate_up.weight"].chunk(2)[1]
    torch.testing.assert_close(dequantise(first)[name], expected, rtol=0, atol=1e-6)


def test_our_model_folder_is_read_back(own_folder: tuple[Path, Recipe, CanonicalState]) -> None:
    folder, _, state = own_folder
    assert load_model_folder(folder).state.root() == state.root()
    assert (folder / "tokenizer_config.json").exists(), "how the tokenizer is used goes with it"
    assert not (folder / "notes.txt").exists()
    save_file(dequantise(state), folder / "model.safetensors")  # as folders were before
    assert load_model_folder(folder).state.root() == state.root()
    spoilt = {**dequantise(state), "embed.weight": torch.zeros_like(state.theta["embed.weight"]).float()}
    save_file(spoilt, folder / "model.safetensors")
    with pytest.raises(BadModelFolder, match="is not what"):
        load_model_folder(folder)


def test_join_takes_a_hugging_face_model_as_one_process(hf_recipe: Recipe, tmp_path: Path) -> None:
    """What `trainer join` makes of the recipe, and what it refuses: a model of this kind is not cut into stages."""
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(range(256)) * 1000)
    own = replace(hf_recipe, data=replace(hf_recipe.data, digest=ANY_TEXT))
    rules = EngineRules(write_recipe(own), member=bytes(20), device="cpu", data_file=file)
    assert rules.create_engine(rules.create_genesis(), 0).train(0, 1).steps == 1
    with pytest.raises(StageCountError):
        check_shape(own, GroupConfig(num_stages=2))


def _save_folder(folder: Path, files: dict[str, dict[str, torch.Tensor]], index: object = None) -> Path:
    """Write files of tensors, and their index where there is one."""
    folder.mkdir()
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    return folder


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int32, torch.bool, torch.complex64], ids=str)
def test_invalid_dtype_of_given_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    """Numbers without their scale, or half of them, are no weights; a mask beside the parameters is in nobody's way."""
    path = tmp_path / "a.safetensors"
    save_file({"a.weight": torch.ones(3), "a.mask": torch.ones(2, 2).to(dtype)}, path)
    values = read_weights(path)
    assert pick_weight(values, "a.weight", (3,)).tolist() == [1.0] * 3
    with pytest.raises(WeightsError, match=rf"tensor a\.mask: dtype {dtype}, expected float32, .*; next: name safeten"):
        pick_weight(values, "a.mask", (2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_given_weights_of_each_float(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a": torch.full((2,), 1.5, dtype=dtype)}, tmp_path / "a.safetensors")
    torch.testing.assert_close(read_weights(tmp_path)["a"], torch.full((2,), 1.5))


def test_a_folder_of_weights_is_what_its_index_names(tmp_path: Path) -> None:
    """Another file of the folder, an adapter or a copy, never takes the place of a shard's tensor."""
    first, second, other = {"a": torch.ones(2)}, {"b": torch.ones(3)}, {"a": torch.zeros(2)}
    shards = {"model-1.safetensors": first, "model-2.safetensors": second}
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    found = read_weights(_save_folder(tmp_path / "index", shards | {"zz.safetensors": other}, index))
    assert {name: value.tolist() for name, value in found.items()} == {"a": [1.0, 1.0], "b": [1.0, 1.0, 1.0]}
    assert read_weights(_save_folder(tmp_path / "shards", shards)).keys() == {"a", "b"}
    with pytest.raises(WeightsError, match=r"tensor a: in model-1\.safetensors and in zz\.safetensors"):
        read_weights(_save_folder(tmp_path / "two", shards | {"zz.safetensors": other}))
    with pytest.raises(WeightsError, match=r"model-2\.safetensors: No such file"):
        read_weights(_save_folder(tmp_path / "short", {"model-1.safetensors": first}, index))
    for number, bad in enumerate(["{", "[1]", {"weight_map": {}}, {"weight_map": {"a": "../model-1.safetensors"}}]):
        with pytest.raises(WeightsError, match=r"index\.json: .* expected .*weight_map.*; next: "):
            read_weights(_save_folder(tmp_path / str(number), shards, bad))


@pytest.mark.parametrize("place", ["named", "in a folder", "index"])
def test_invalid_weights_that_are_no_file(tmp_path: Path, place: str) -> None:
    """A pipe may never begin and a device has no end: neither is read."""
    path = tmp_path / ("model.safetensors.index.json" if place == "index" else "model.safetensors")
    os.mkfifo(path)
    with pytest.raises(WeightsError, match=r"is a device, a pipe or a socket, expected .* check the path"):
        read_weights(path if place == "named" else tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(WeightsError, match=r"is a device, a pipe or a socket"):
        read_weights(path if place == "named" else tmp_path)


def test_invalid_version_of_the_library(hf_recipe: Recipe) -> None:
    from training.models.hugging_face import create_causal_lm

    model = hf_recipe.model
    with pytest.raises(ModelMismatchError, match=r"the version of transformers"):
        create_causal_lm(replace(model, tensors=model.tensors + "\nextra.weight 2x2 ones"))


def test_invalid_remote_code() -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    with pytest.raises(RecipeValueError, match=r"no auto_map"):
        describe_causal_lm(json.dumps(LLAMA | {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}), 16)
    with pytest.raises(RecipeValueError, match=r"transformers knows"):
        describe_causal_lm(json.dumps({"model_type": "no-such"}), 16)


@pytest.mark.parametrize("line", ["a.weight 2x2", "a.weight 2xq ones", "a.weight 2x2 twos", "a.weight 2x2 uniform:0/3"])
def test_invalid_tensor_table(line: str) -> None:
    base = create_recipe("0.4M")
    model = replace(base.model, kind=ModelKind.HUGGING_FACE, config="{}", tensors=line)
    with pytest.raises(RecipeValueError, match=r"model\.tensors"):
        build_layout(replace(base, model=model))


def test_run_begins_from_given_weights(tmp_path: Path) -> None:
    """Weights in by safetensors: on the grid to half a unit, the same root from parts, refused where they don't fit."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import create_causal_lm, describe_causal_lm

    drawn = describe_causal_lm(json.dumps(LLAMA), 16)
    torch.manual_seed(5)
    given = {name: torch.randn_like(weight) for name, weight in create_causal_lm(drawn).named_parameters()}
    path = tmp_path / "start.safetensors"
    save_file(given, path)
    recipe = create_recipe_for(describe_causal_lm(json.dumps(LLAMA), 16, given), "given")
    state = create_first_state(recipe, path)
    for name, value in dequantise(state).items():
        torch.testing.assert_close(value, given[name], rtol=0, atol=2.0 ** -state.fraction_bits[name])
        assert int(state.theta[name].abs().max()) * 64 < 1 << 31
    assert decode_parts(recipe, [state.encode_part(0, 2), state.encode_part(1, 2)]).root() == state.root()
    with pytest.raises(WeightsError, match=r"given tensors.* add --weights FOLDER"):
        create_first_state(recipe, None)
    with pytest.raises(WeightsError, match=r"no tensor of the recipe is given.* leave --weights out"):
        create_first_state(create_recipe("0.4M"), path)
    for wrong in (tmp_path / "nowhere", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(WeightsError, match=r"(not there|no \*\.safetensors).* check the path after --weights"):
            create_first_state(recipe, wrong)
    save_file({name: value for name, value in given.items() if "norm" not in name}, path)
    with pytest.raises(WeightsError, match=r"absent.* --weights"):
        create_first_state(recipe, path)
    bare = {name.removeprefix("model."): value for name, value in given.items()}
    save_file(bare, path)
    assert create_first_state(recipe, path).root() == state.root(), "files of a bare model leave the prefix out"
    save_file(bare | {"norm.weight": torch.full((16,), torch.nan)}, path)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight: 16 that are not finite"):
        create_first_state(recipe, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "JSON object"),
        ("{", "JSON of a model's config"),
        (json.dumps(LLAMA | {"hidden_size": -3}), "with its fields"),
        (json.dumps(LLAMA | {"hidden_size": "big"}), "with its fields"),
        (json.dumps({"model_type": "vit"}), "causal language model"),
        (json.dumps(LLAMA | {"quantization_config": {"quant_method": "fp8"}}), "quantization_config.*F32"),
        (json.dumps({"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 16}), "sdpa"),
    ],
    ids=["list", "cut", "negative", "word", "no language model", "quantised", "no attention"],
)
def test_invalid_config_is_refused_in_one_line(text: str, reason: str) -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    with pytest.raises(RecipeValueError, match=reason) as caught:
        describe_causal_lm(text)
    assert "\n" not in str(caught.value)


HUGE = 10**12


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2 | {"n_head": 0}, r"model\.config\.n_head' is 0, expected 1\.\."),
        (GPT2 | {"n_embd": 0}, r"model\.config\.n_embd' is 0, expected 1\.\."),
        (GPT2 | {"n_positions": 0}, r"model\.config\.n_positions' is 0, expected 1\.\."),
        (GPT2 | {"n_positions": HUGE}, rf"model\.config\.n_positions' is {HUGE}, expected 1\.\."),
        (GPT2 | {"n_layer": 100_000}, r"model\.config\.n_layer' is 100000, expected 1\.\.512"),
        (LLAMA | {"model_type": "qwen2", "num_hidden_layers": HUGE}, r"num_hidden_layers' is .*, expected 1\.\.512"),
        (GPT2 | {"initializer_range": float("inf")}, r"initializer_range' is inf, expected 0"),
        (GPT2 | {"initializer_range": float("nan")}, r"initializer_range' is nan, expected 0"),
        (GPT2 | {"initializer_range": 1e30}, r"initializer_range' is 1e\+30, expected 0"),
        (LLAMA | {"rope_theta": 0}, r"rope_theta' is 0, expected a finite number above 0"),
        (LLAMA | {"rope_parameters": {"rope_theta": 0.0}}, r"rope_theta' is 0\.0, expected a finite number above 0"),
        (LLAMA | {"rope_scaling": -1}, r"rope_scaling' is -1, expected an object or null"),
        (
            LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": -2.0}},
            r"factor' is -2\.0, expected a finite number",
        ),
    ],
)
def test_invalid_number_in_a_config(config: dict[str, object], reason: str) -> None:
    """Refused by the name that the config has for it, at `trainer recipe` and, in a recipe changed by hand, at join."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    with pytest.raises(RecipeValueError, match=rf"{reason}.*; next: "):
        describe_causal_lm(json.dumps(config))
    recipe = create_recipe_for(describe_causal_lm(json.dumps(GPT2)), "hf")
    changed = replace(recipe, model=replace(recipe.model, config=json.dumps(config)))
    with pytest.raises(RecipeValueError, match=rf"{reason}.*; next: "):
        EngineRules(write_recipe(changed), member=bytes(20), device="cpu", data_file=None)


def test_invalid_initializer_range_that_rounds_to_nothing() -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    with pytest.raises(RecipeValueError, match=r"initializer_range' is 1e-06, expected 0\.0001"):
        describe_causal_lm(json.dumps(GPT2 | {"initializer_range": 1e-6}))


def test_invalid_weights_beyond_any_grid() -> None:
    """At `trainer recipe`, and in a table that somebody changed by hand; the largest that is taken has a grid."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import create_causal_lm, describe_causal_lm

    drawn = describe_causal_lm(json.dumps(LLAMA), 16)
    given = {name: torch.ones_like(weight) for name, weight in create_causal_lm(drawn).named_parameters()}
    norm = "model.norm.weight"
    for largest in (1e9, 1e38):
        with pytest.raises(WeightsError, match=r"model\.norm\.weight: weights up to 1e\+.*, expected at most 16777216"):
            describe_causal_lm(json.dumps(LLAMA), 16, given | {norm: torch.full((16,), largest)})
    most = describe_causal_lm(json.dumps(LLAMA), 16, given | {norm: torch.full((16,), float(1 << 24))})
    recipe = create_recipe_for(most, "given")
    assert all(tensor.fraction_bits >= 0 for tensor in build_layout(recipe).tensors)
    assert create_causal_lm(most)
    rest = "\n".join(line for line in most.tensors.split("\n") if not line.startswith(norm))
    for start, expected in ((f" given:{10**18}/1", "at most 16777216"), ("", "NAME SHAPE"), (" given:x", "NAME SHAPE")):
        with pytest.raises(RecipeValueError, match=rf"model\.tensors.*{expected}"):
            create_causal_lm(replace(most, tensors=f"{rest}\n{norm} 16{start}"))


def test_invalid_weights_of_another_model() -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    shape = (256, 16)
    with pytest.raises(WeightsError, match=r"absent"):
        describe_causal_lm(json.dumps(LLAMA), 16, {"wte.weight": torch.zeros(shape)})
    with pytest.raises(WeightsError, match=r"a shape of \(2, 2\), expected \(256, 16\)"):
        describe_causal_lm(json.dumps(LLAMA), 16, {"model.embed_tokens.weight": torch.zeros(2, 2)})


def test_no_sample_is_longer_than_the_model_has_positions(tmp_path: Path) -> None:
    """The default takes as many as there are; more would end in an index error in the first inner step."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import create_causal_lm, describe_causal_lm

    model = describe_causal_lm(json.dumps(GPT2))
    assert model.context == GPT2["n_positions"]
    with pytest.raises(RecipeValueError, match=r"model\.context.* is 33, expected at most 32"):
        describe_causal_lm(json.dumps(GPT2), 33)
    with pytest.raises(RecipeValueError, match=r"at most 32"):
        create_causal_lm(replace(model, context=33))


def test_untied_config_over_tied_weights_is_told_how_to_tie(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    def describe(config: dict[str, object], weights: dict[str, torch.Tensor] | None) -> str:
        return describe_causal_lm(json.dumps(config), 16, weights).tensors

    shapes = [line.split()[:2] for line in describe(LLAMA, None).split("\n")]
    tied = {name: torch.ones([int(size) for size in shape.split("x")]) for name, shape in shapes}
    assert describe(LLAMA, tied)
    with pytest.raises(WeightsError, match=r'lm_head\.weight: absent.* "tie_word_embeddings": true'):
        describe(LLAMA | {"tie_word_embeddings": False}, tied)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "xlnet", "xlm", "bart"])
def test_invalid_model_whose_tokens_see_later_ones(kind: str) -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    with pytest.raises(RecipeValueError, match=rf"{kind}.* a causal language model.*") as caught:
        describe_causal_lm(json.dumps({"model_type": kind, "vocab_size": 256}))
    assert any(words in str(caught.value) for words in ("sees later ones", "has an encoder"))


def test_a_decoder_of_a_family_that_fills_masks_is_taken() -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    config = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert describe_causal_lm(json.dumps(config | {"intermediate_size": 32, "is_decoder": True})).tensors


SMALL = {
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "config",
    [
        GPT2 | {"resid_pdrop": 1, "embd_pdrop": 1},
        SMALL | {"model_type": "bert", "is_decoder": True},
        SMALL | {"model_type": "biogpt", "layerdrop": 0.5},
    ],
    ids=lambda config: str(config["model_type"]),
)
def test_a_model_in_training_leaves_nothing_to_chance(config: dict[str, object]) -> None:
    """A worker that goes on from its file must come to the same bits: no mask may depend on a generator's state."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import create_causal_lm, describe_causal_lm

    torch.manual_seed(3)
    module = create_causal_lm(describe_causal_lm(json.dumps(config), 16))
    tokens = torch.arange(32).reshape(2, 16)
    assert module.training
    with torch.no_grad():
        first = module(tokens)
        assert all(torch.equal(first, module(tokens)) for _ in range(4))
        assert torch.equal(first, module.eval()(tokens)), "a chance of 1 leaves all out, the same each time"


def test_invalid_context_is_refused_before_anything_is_bonded() -> None:
    """A recipe that somebody changed: `run create` and `join` look at the model, and not first in an inner step."""
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    recipe = create_recipe_for(describe_causal_lm(json.dumps(GPT2)), "hf")
    recipe = replace(recipe, data=replace(recipe.data, digest=ANY_TEXT))
    text = write_recipe(recipe).replace("context = 32", "context = 33")
    with pytest.raises(RecipeValueError, match=r"model\.context.* is 33, expected at most 32"):
        EngineRules(text, member=bytes(20), device="cpu", data_file=None)


def test_a_recipe_says_beside_it_what_a_trial_changes() -> None:
    text = write_recipe(create_recipe("0.4M"))
    for key in ("num_rounds", "local_steps", "warmup_steps"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
        assert "  # " in line
