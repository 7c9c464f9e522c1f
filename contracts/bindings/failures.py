"""How command-line tools say that something failed: `error:` what, and `next:` what to do about it.

The messages of this project end in `; next: STEP` where there is a step; an error with an attribute
``next_step`` says it there.
"""

from __future__ import annotations

import errno

from contracts.bindings.foreign_text import show_lines

SEPARATOR = "; next: "
"""Between what happened and what to do."""

_FULL_STEP = "make room on that disk, or name a place on another"

_LONG_STEP = "let files be longer (ulimit -f), or name a place whose file system takes them"

_STEPS = {
    errno.ENOENT: "name one that exists",
    errno.ENOTDIR: "name a path whose parts are folders",
    errno.EISDIR: "name a file",
    errno.EEXIST: "name another, or move that one away",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EACCES: "name one that you may use, or change its owner or mode",
    errno.EPERM: "name one that you may use, or change its owner or mode",
    errno.EROFS: "name a place that can be written to",
}
"""What to do about a file that the system refuses."""


def describe_failure(error: BaseException) -> str:
    """Return one line, or two where a next step is known; no class name, that is for programs.

    Control characters are escaped, all but line breaks, which only our own messages have (`foreign_text`).

    >>> describe_failure(ValueError("--tokens is 0, expected more; next: name an amount"))
    'error: --tokens is 0, expected more\\nnext:  name an amount'
    """
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    what, _, step = text.partition(SEPARATOR)
    step = getattr(error, "next_step", "") or step
    if not step and isinstance(error, OSError):
        step = _FULL_STEP if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        step = _LONG_STEP if error.errno == errno.EFBIG else step
        if error.filename is not None and error.errno is not None:
            step = step or _STEPS.get(error.errno, "")
    what = what or "stopped"
    return show_lines(f"error: {what}" + (f"\nnext:  {step}" if step else ""))
