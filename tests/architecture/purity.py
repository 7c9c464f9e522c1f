"""The purity rules of STYLE 1 and 14 as a reader of syntax trees: source in, findings out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

IMPURE_MODULES = frozenset(
    {
        "asyncio",
        "concurrent",
        "datetime",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)
"""A pure core has no clock, chance, environment, file, socket or thread."""
IMPURE_CALLS = frozenset({"open", "input", "print", "hash", "id", "float"})
"""`hash` differs with PYTHONHASHSEED, `id` with the address; the others touch the world or leave the integers."""
ORDER_FREE = frozenset({"sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset"})
"""Functions whose answer does not depend on the order of a set."""


def find_impurities(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for everything that a core of chain, da or storage must not contain."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Constant(value=float() | complex()):
                yield line, f"float {node.value}"
            case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
                yield line, "true division"
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] in IMPURE_MODULES:
                        yield line, f"import {alias.name}"
            case ast.ImportFrom(module=str(module), level=0):
                if module.split(".")[0] in IMPURE_MODULES:
                    yield line, f"from {module} import"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield line, f"{name}()"
            case ast.Global():
                yield line, "global statement"
            case ast.For(iter=over) | ast.comprehension(iter=over) if is_set(over):
                yield getattr(over, "lineno", line), "iteration over a set"
            case ast.Call(func=ast.Name(id="list" | "tuple" | "enumerate"), args=[first, *_]) if is_set(first):
                yield line, "a set made into a sequence"
            case ast.Call(func=ast.Attribute(attr="join"), args=[first]) if is_set(first):
                yield line, "a set joined"


def find_broad_excepts(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for a bare except, and for catching Exception or BaseException in silence.

    Let through: raising at the end (tidying up), and logging the whole exception (the outermost loop of a
    thread or of a request, STYLE 14).
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield node.lineno, "bare except"
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {name.id for name in caught if isinstance(name, ast.Name)}
        if names & {"Exception", "BaseException"} and not (isinstance(node.body[-1], ast.Raise) or logs_it(node)):
            yield node.lineno, "except " + ", ".join(sorted(names))


def logs_it(handler: ast.ExceptHandler) -> bool:
    """Say whether a handler writes the exception with its traceback into a log."""
    return any(isinstance(node, ast.Attribute) and node.attr == "exception" for node in ast.walk(handler))


def is_set(node: ast.expr) -> bool:
    """Say whether an expression is visibly a set."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return is_set(left) or is_set(right)
        case _:
            return False
