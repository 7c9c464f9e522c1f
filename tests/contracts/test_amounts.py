"""Money is written alike everywhere: tokens, six significant digits, gwei only below a millionth of a token."""

from __future__ import annotations

import errno
import os

import pytest

from contracts.bindings.amounts import format_tokens
from contracts.bindings.failures import describe_failure
from contracts.bindings.transport import Transport


@pytest.mark.parametrize(
    ("wei", "text"),
    [
        (0, "0 tokens"),
        (1, "0.000000001 gwei"),
        (227_300_000_000, "227.3 gwei"),
        (10**12 - 1, "1,000 gwei"),
        (10**12, "0.000001 tokens"),
        (1_234_567_891_234_567, "0.00123457 tokens"),
        (15 * 10**17, "1.5 tokens"),
        (10**18, "1 token"),
        (99_999_000_000_000_000_000, "99.999 tokens"),
        (998_999_978_999_916_000_000, "999 tokens"),
        (1_234_567 * 10**18 + 5 * 10**17, "1,234,568 tokens"),
    ],
)
def test_amounts_have_six_digits_and_a_unit(wei: int, text: str) -> None:
    assert format_tokens(wei) == text


def test_failures_are_one_line_or_two_without_a_class_name() -> None:
    assert describe_failure(ValueError("4, expected 5")) == "error: 4, expected 5"
    assert describe_failure(ValueError("4, expected 5; next: wait")) == "error: 4, expected 5\nnext:  wait"
    said = describe_failure(FileNotFoundError(2, "No such file", "book.txt"))
    assert said == "error: book.txt: No such file\nnext:  name one that exists"
    assert (
        describe_failure(OSError(errno.EIO, "Input/output error", "book.txt")) == "error: book.txt: Input/output error"
    )


@pytest.mark.parametrize("name", ["ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ENAMETOOLONG", "EACCES", "EROFS", "ENOSPC"])
def test_a_file_that_the_system_refuses_has_a_next_step(name: str) -> None:
    code = getattr(errno, name)
    assert "\nnext:  " in describe_failure(OSError(code, os.strerror(code), "book.txt"))


def test_a_chain_url_that_is_none_has_a_next_step() -> None:
    with pytest.raises(ValueError, match=r"chain URL 'foo' is no .*; next: "):
        Transport(["foo"], timeout_seconds=1.0)
