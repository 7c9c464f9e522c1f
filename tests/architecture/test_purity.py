"""Cores are pure, failures are caught by name, packages load nothing (STYLE 1, 4, 14)."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("chain", "da", "storage", "training", "contracts", "localnet", "benchmarks")
INTEGER_CORES = ("chain", "da", "storage")
VAGUE_NAMES = {"utils.py", "util.py", "common.py", "misc.py", "helpers.py", "helper.py", "manager.py"}
MOST_LINES = 800
TEXT_SUFFIXES = {".py", ".md", ".toml", ".sh", ".mod", ".json", ".sol", ".html", ".css", ".js", ".proto", ".yml", ""}
MACHINE_PATHS = re.compile(r"(?<![\w.~/-])/(?:home|root|work|Users)/[\w.-]+/")
REGISTRY_HOSTS = re.compile(
    r"\b(?:"
    + "|".join(
        [
            "pypi" + r"\.org",
            "pythonhosted" + r"\.org",
            "npmjs" + r"\.(?:org|com)",
            "proxy" + r"\.golang\.org",
            "crates" + r"\.io",
        ]
    )
    + r")\b"
)


def load_rules() -> ModuleType:
    spec = importlib.util.spec_from_file_location("purity_rules", Path(__file__).with_name("purity.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RULES = load_rules()


def list_sources(*packages: str) -> list[Path]:
    return [
        path
        for package in packages
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.endswith("_pb2.py") and "node_modules" not in path.parts
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def report(findings: list[str]) -> None:
    assert not findings, "\n" + "\n".join(findings)


def test_cores_of_chain_da_and_storage_are_pure() -> None:
    cores = [path for path in list_sources(*INTEGER_CORES) if "core" in path.relative_to(ROOT).parts]
    assert len(cores) > 10
    report([f"{name(path)}:{line}: {what}" for path in cores for line, what in RULES.find_impurities(path.read_text())])


def test_failures_are_caught_by_name() -> None:
    report(
        [
            f"{name(path)}:{line}: {what}"
            for path in list_sources(*PACKAGES)
            for line, what in RULES.find_broad_excepts(path.read_text())
        ]
    )


def test_package_files_hold_a_docstring_and_nothing_else() -> None:
    findings = []
    for path in list_sources(*PACKAGES):
        if path.name != "__init__.py":
            continue
        body = ast.parse(path.read_text()).body
        if (
            len(body) != 1
            or not isinstance(body[0], ast.Expr)
            or ast.get_docstring(ast.parse(path.read_text())) is None
        ):
            findings.append(name(path))
    report(findings)


def test_modules_say_what_they_are() -> None:
    report([name(path) for path in list_sources(*PACKAGES) if ast.get_docstring(ast.parse(path.read_text())) is None])


def test_modules_are_named_after_their_subject_and_short() -> None:
    sources = list_sources(*PACKAGES)
    report([name(path) for path in sources if path.name in VAGUE_NAMES])
    report([f"{name(path)}: {n} lines" for path in sources if (n := len(path.read_text().splitlines())) > MOST_LINES])


def test_no_machine_path_and_no_registry_host_in_tracked_files() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    findings = []
    for relative in listing.stdout.split("\0"):
        path = ROOT / relative
        if not relative or path.suffix not in TEXT_SUFFIXES or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for pattern in (MACHINE_PATHS, REGISTRY_HOSTS):
                found = pattern.search(line)
                if found:
                    findings.append(f"{relative}:{number}: {found[0]}")
    report(findings)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("x = 0.5", "float 0.5"),
        ("x = a / b", "true division"),
        ("a /= b", "true division"),
        ("import os", "import os"),
        ("import os.path", "import os.path"),
        ("from time import monotonic", "from time import"),
        ("for x in {1, 2}: pass", "iteration over a set"),
        ("y = [x for x in set(z)]", "iteration over a set"),
        ("for x in set(a) - b: pass", "iteration over a set"),
        ("y = list(set(z))", "a set made into a sequence"),
        ("y = b''.join({z})", "a set joined"),
        ("y = hash(z)", "hash()"),
        ("def f():\n    global g", "global statement"),
    ],
)
def test_invalid_core_is_found(source: str, what: str) -> None:
    assert what in [finding for _, finding in RULES.find_impurities(source)]


@pytest.mark.parametrize(
    "source",
    ["x = a // b", "for x in sorted({1, 2}): pass", "from da.core.types import Height", "x = {1} | y", "1 in {1}"],
)
def test_valid_core_is_let_through(source: str) -> None:
    assert list(RULES.find_impurities(source)) == []


@pytest.mark.parametrize(
    ("source", "num_findings"),
    [
        ("try: pass\nexcept: pass", 1),
        ("try: pass\nexcept Exception: pass", 1),
        ("try: pass\nexcept (ValueError, BaseException): tidy()", 1),
        ("try: pass\nexcept BaseException:\n    tidy()\n    raise", 0),
        ("try: pass\nexcept Exception as e:\n    LOG.exception('thread')\n    failure = e", 0),
        ("try: pass\nexcept Exception as e:\n    LOG.warning('thread')", 1),
        ("try: pass\nexcept (ValueError, OSError): pass", 0),
    ],
)
def test_broad_except_is_found(source: str, num_findings: int) -> None:
    assert len(list(RULES.find_broad_excepts(source))) == num_findings
