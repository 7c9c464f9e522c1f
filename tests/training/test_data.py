"""Files of text, documents and tokens; tokenizers; samples that anyone can recompute (CASES 16)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

from training.cli import app
from training.core.errors import (
    CorpusFormatError,
    CorpusTooSmallError,
    MissingExtraError,
    TextDigestError,
    TokenizerError,
)
from training.core.recipe import DataRecipe, DataSource, Recipe
from training.core.sampling import compute_data_seed, plan_samples
from training.data.corpus import load_corpus
from training.data.tokenizer import compute_tokenizer_digest
from training.local import LocalWorker
from training.recipes.writing import write_recipe

DOCUMENTS = [f"document {index}: " + "words and more " * (index % 7 + 1) for index in range(300)]
DATA = DataRecipe(source=DataSource.FILE, held_out_bps=1_000)


def test_jsonl_and_parquet_are_the_same_text(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="extra data: pyarrow")
    from pyarrow import parquet

    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("\n".join(json.dumps({"text": text, "id": 1}) for text in DOCUMENTS) + "\n\n")
    parquet.write_table(pyarrow.table({"text": DOCUMENTS}), table)
    first, second = load_corpus(DATA, lines), load_corpus(DATA, table)
    assert first.train_digest == second.train_digest
    assert first.held_out_digest == second.held_out_digest
    assert first.train.size + first.held_out.size == sum(len(text) + 1 for text in DOCUMENTS)
    with pytest.raises(CorpusFormatError, match=r"line 1"):
        load_corpus(replace(DATA, column="body"), lines)
    with pytest.raises(CorpusFormatError, match=r"columns text"):
        load_corpus(replace(DATA, column="body"), table)
    table.write_bytes(b"PAR1 no")
    with pytest.raises(CorpusFormatError, match=r"parquet"):
        load_corpus(DATA, table)


def test_a_saved_data_set_is_the_same_text_by_file_and_by_name(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="extra data: datasets")
    folder, lines = tmp_path / "saved", tmp_path / "a.jsonl"
    datasets.Dataset.from_dict({"text": DOCUMENTS}).save_to_disk(str(folder))
    lines.write_text("\n".join(json.dumps({"text": text}) for text in DOCUMENTS))
    named = DataRecipe(source=DataSource.DATASET, dataset=str(folder), held_out_bps=DATA.held_out_bps)
    digests = {load_corpus(DATA, lines).digest, load_corpus(DATA, folder).digest, load_corpus(named).digest}
    assert len(digests) == 1
    with pytest.raises(CorpusFormatError, match=r"columns text"):
        load_corpus(replace(named, column="body"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": null}', r"line 3 holds null under 'text', expected a string; next: mend it"),
        (b'{"text": {"a": [1]}}', r"line 3 holds an object under 'text'"),
        (b'{"text": ["a"]}', r"line 3 holds a list under 'text'"),
        (b'{"text": 7}', r"line 3 holds a number under 'text'"),
        (b'{"text": NaN}', r"line 3 holds a number under 'text'"),
        (b'{"text": true}', r"line 3 holds a boolean under 'text'"),
        (
            b'{"body": "a", "id": 1}',
            r"line 3 holds an object with 'body', 'id', expected an object with 'text'; next: ",
        ),
        (b"{}", r"line 3 holds an object with nothing"),
        (b"[1]", r"line 3 holds a list, expected an object"),
        (b'"text"', r"line 3 holds a string, expected an object"),
        (b'{"text": "a', r"line 3 holds no JSON \(Invalid control character at character 12\)"),
        (b'{"text": ' + b"9" * 5_000 + b"}", r"line 3 holds a number too long to read"),
        (b"[" * 200_000, r"line 3 holds brackets nested too deeply, .*; next: mend it"),
        (b'{"a":' * 100_000, r"line 3 holds brackets nested too deeply"),
        (b'{"text": "a\\ud800 b"}', r"line 3 holds half a character .* at character 1, expected text that UTF-8"),
        (b'{"text": "\xe9"}', r"line 3 holds what is no UTF-8 from its byte 10 on, .*; next: write the file anew"),
        ('{"text": "a"}'.encode("utf-16"), r"line 3 holds what is no UTF-8 from its byte 0 on"),
    ],
)
def test_invalid_line_of_jsonl_is_named_with_what_it_holds(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\n\n' + line + b"\n")
    with pytest.raises(CorpusFormatError, match=rf"a\.jsonl, {said}"):
        load_corpus(DATA, path)


def test_invalid_values_of_parquet_are_named_with_their_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="extra data: pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    two_texts = [None, pyarrow.py_buffer(np.array([0, 2, 4], "i4").tobytes()), pyarrow.py_buffer(b"ab\xfd\xfc")]
    for column, said in (
        (["a", None], "row 2 holds null under 'text', expected a string; next: mend it"),
        ([[1], [2]], "row 1 holds a list under 'text'"),
        ([b"a", b"b"], "row 1 holds bytes under 'text'"),
        (pyarrow.Array.from_buffers(pyarrow.string(), 2, two_texts), "row 2 holds what is no UTF-8 under 'text'"),
    ):
        parquet.write_table(pyarrow.table({"text": column}), path)
        with pytest.raises(CorpusFormatError, match=rf"a\.parquet, {said}"):
            load_corpus(DATA, path)
    parquet.write_table(pyarrow.table({"text": DOCUMENTS}), path)
    damaged = bytearray(path.read_bytes())
    damaged[20:60] = b"\xff" * 40
    path.write_bytes(damaged)
    with pytest.raises(CorpusFormatError, match=r"a\.parquet holds .*(snappy|page|ecompress).*; next: name another"):
        load_corpus(DATA, path)


def test_invalid_values_of_a_saved_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="extra data: datasets")
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"text": ["a", None]}).save_to_disk(str(folder))
    with pytest.raises(CorpusFormatError, match=r"saved, row 2 holds null under 'text'"):
        load_corpus(DATA, folder)


def test_a_tokenizer_without_an_unknown_token_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    text, path = tmp_path / "a.txt", tmp_path / "tokenizer.json"
    text.write_text(" ".join(DOCUMENTS))
    data = _save_tokenizer(path, {"words": 0, "more": 1})
    with pytest.raises(CorpusFormatError, match=r"tokenizer\.json holds no token for some .*; next: give another"):
        load_corpus(data, text, tokenizer_file=path)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "no tokenizer"),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {},
                }
            },
            "no token for some of the text",
        ),
    ],
)
def test_a_tokenizer_whose_library_panics_is_named(tmp_path: Path, odd: dict[str, Any], said: str) -> None:
    """The library's panics are no Exception."""
    pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    text, path = tmp_path / "a.txt", tmp_path / "tokenizer.json"
    text.write_text("words words")
    data = _save_tokenizer(path, {"words": 0, "more": 1}, **odd)
    with pytest.raises(CorpusFormatError, match=rf"tokenizer\.json holds {said} \(.*; next: "):
        load_corpus(data, text, tokenizer_file=path)


def test_tokenizer_by_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    words = {word: number for number, word in enumerate(["[UNK]", "words", "and", "more", "document"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path, text = tmp_path / "tokenizer.json", tmp_path / "a.txt"
    made.save(str(path))
    text.write_text(" ".join(DOCUMENTS))
    data = replace(DATA, tokenizer_digest=compute_tokenizer_digest(path))
    found = load_corpus(data, text, tokenizer_file=path)
    assert found.train.dtype == np.uint16
    assert set(found.train.tolist()) <= set(range(5))
    with pytest.raises(TokenizerError, match="none was given; next: add --tokenizer FILE"):
        load_corpus(data, text)
    with pytest.raises(TokenizerError):
        load_corpus(DATA, text, tokenizer_file=path)
    with pytest.raises(CorpusFormatError, match=r"vocabulary"):
        load_corpus(data, text, tokenizer_file=path, vocabulary=4)


def _save_tokenizer(path: Path, vocabulary: dict[str, int], **fields: object) -> DataRecipe:
    """Write a tokenizer.json of words; return the [data] that names it."""
    nothing = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    path.write_text(json.dumps(nothing | whole | fields))
    return replace(DATA, tokenizer_digest=compute_tokenizer_digest(path))


def test_a_tokenizer_neither_cuts_nor_fills_the_text(tmp_path: Path) -> None:
    """A tokenizer.json carries the limits of one model's samples; the text of a run has other ones."""
    pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    words = {"[UNK]": 0, "words": 1, "more": 2}
    text, plain, cut = tmp_path / "a.txt", tmp_path / "plain.json", tmp_path / "cut.json"
    text.write_text(" ".join(DOCUMENTS))
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    filler = {"strategy": {"Fixed": 100_000}, "direction": "Right", "pad_to_multiple_of": None}
    padding = filler | {"pad_id": 2, "pad_type_id": 0, "pad_token": "more"}
    whole = load_corpus(_save_tokenizer(plain, words), text, tokenizer_file=plain)
    for fields in ({"truncation": truncation}, {"padding": padding}):
        found = load_corpus(_save_tokenizer(cut, words, **fields), text, tokenizer_file=cut)
        np.testing.assert_array_equal(found.train, whole.train)
        np.testing.assert_array_equal(found.held_out, whole.held_out)


def test_invalid_ids_beyond_the_models_vocabulary(tmp_path: Path) -> None:
    """Few tokens may have large ids: these would index past the embedding, or past 16 bits."""
    pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    text, path = tmp_path / "a.txt", tmp_path / "tokenizer.json"
    text.write_text(" ".join(DOCUMENTS))
    data = _save_tokenizer(path, {"[UNK]": 0, "words": 70_000})
    with pytest.raises(
        CorpusFormatError, match=r"tokenizer\.json holds tokens up to id 70000,.* model\.vocabulary = 256"
    ):
        load_corpus(data, text, tokenizer_file=path, vocabulary=256)
    assert int(load_corpus(data, text, tokenizer_file=path, vocabulary=70_001).train.max()) == 70_000
    special = {"id": "[END]", "ids": [99_999], "tokens": ["[END]"]}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[END]", "type_id": 0}}]
    ending = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {"[END]": special}}
    data = _save_tokenizer(path, {"[UNK]": 0, "words": 1}, post_processor=ending)
    with pytest.raises(CorpusFormatError, match=r"tokenizer\.json holds token 99999, expected ids .* at most 1"):
        load_corpus(data, text, tokenizer_file=path, vocabulary=256)


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe{}", b"[" * 50_000], ids=["empty", "no UTF-8", "deep"])
def test_invalid_tokenizer_is_named_with_the_next_step(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    text, path = tmp_path / "a.txt", tmp_path / "tokenizer.json"
    text.write_text(" ".join(DOCUMENTS))
    path.write_bytes(content)
    data = replace(DATA, tokenizer_digest=compute_tokenizer_digest(path))
    with pytest.raises(CorpusFormatError, match=r"tokenizer\.json holds no tokenizer \(.*; next: name another file"):
        load_corpus(data, text, tokenizer_file=path)


def test_missing_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"archipelago\[data\]"):
        load_corpus(DataRecipe(source=DataSource.DATASET, dataset="some/set"))
    with pytest.raises(MissingExtraError):
        load_corpus(DATA, tmp_path)


def test_explain_names_the_very_samples_a_worker_trains_on(make_recipe, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """What the command prints is what the worker's inner step is given, tokens included."""
    recipe: Recipe = make_recipe()
    text = tmp_path / "a.txt"
    text.write_text("\n".join(DOCUMENTS) * 4)
    corpus = load_corpus(recipe.data, text)
    members = [b"\x01" * 20, b"\x02" * 20]
    from training.core.canonical import create_genesis

    worker = LocalWorker(recipe, create_genesis(recipe), 0, members[1], corpus=corpus)
    seen = []
    monkeypatch.setattr(worker._inner, "step", lambda samples, rate: seen.append(samples) or 1.0)
    worker.train(7, 2, participants=members)
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(recipe))
    arguments = ["data", "explain", "--recipe", str(path), "--round", "7", "--member", "0x" + members[1].hex()]
    arguments += ["--data", str(text), "--json", "--samples", "4"]
    arguments += [part for member in members for part in ("--among", "0x" + member.hex())]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    found = json.loads(printed.output)
    rows = [row.tolist() for samples in seen for row in samples]
    assert len(rows) == 4
    assert [corpus.train[at : at + recipe.model.context + 1].tolist() for at in found["starts"]] == rows
    assert found["first_sample"] == rows[0]
    assert found["digest"] == corpus.digest.hex()
    assert not found["is_agreed_text"]
    printed = CliRunner().invoke(app, ["data", "digest", "--recipe", str(path), "--data", str(text)])
    path.write_text(path.read_text().replace('\ndigest = ""', "\n" + printed.output))
    assert json.loads(CliRunner().invoke(app, arguments).output)["is_agreed_text"]
    text.write_text("another" * 9_000)
    refused = CliRunner().invoke(app, arguments).exception
    assert isinstance(refused, TextDigestError)
    assert refused.expected == corpus.digest.hex()
    plan = plan_samples(
        seed=recipe.seed,
        round_index=7,
        data_seed=compute_data_seed(recipe.seed, 7),
        member=members[0],
        participants=members,
        num_bytes=corpus.train.size,
        context=recipe.model.context,
    )
    assert not set(plan.starts(0, 50)) & set(found["starts"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--round", "18446744073709551616"], "Invalid value for '--round'"),
        (["--round", "4294967296"], "Invalid value for '--round'"),
        (["--round", "7", "--samples", "10001"], "Invalid value for '--samples'"),
        (["--round", "7", "--among", "0x" + "02" * 20], "is none of the round's members that --among names"),
    ],
)
def test_explain_refuses_what_no_round_has(options: list[str], said: str, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\n".join(DOCUMENTS) * 4)
    path = Path(__file__).parents[2] / "training" / "recipes" / "demo.toml"
    arguments = ["data", "explain", "--recipe", str(path), "--member", "0x" + "01" * 20, "--data", str(text)]
    printed = CliRunner().invoke(app, [*arguments, *options], env={"COLUMNS": "200"})
    assert printed.exit_code != 0
    assert said in printed.output + str(printed.exception)


def test_invalid_small_text_is_refused_where_its_digest_is_made(make_recipe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path, text = tmp_path / "recipe.toml", tmp_path / "a.txt"
    path.write_text(write_recipe(make_recipe()))
    text.write_bytes(b"too short")
    explain = ["data", "explain", "--round", "0", "--member", "0x" + "01" * 20, "--recipe", str(path)]
    for arguments in (["recipe", "0.4M"], ["data", "digest", "--recipe", str(path)], explain):
        refused = CliRunner().invoke(app, [*arguments, "--data", str(text)]).exception
        assert isinstance(refused, CorpusTooSmallError), arguments


def test_next_step_of_a_foreign_text_can_be_typed() -> None:
    assert "trainer data digest --recipe RECIPE.toml --data FILE" in str(TextDigestError("00", "11"))


def test_no_help_loses_words_in_brackets() -> None:
    """Rich takes [data] for markup: no text of a command or option may hold what it would swallow."""

    def walk(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
        for inner in getattr(command, "commands", {}).values():
            yield from walk(inner)

    texts = list(walk(get_command(app)))
    assert len(texts) > 50
    assert [text for text in texts if Text.from_markup(text).plain != text] == []
