"""Expected failures of a devnet.

LocalnetError
├── NoFreePort            no port in the range could be bound
├── CannotStart           a command is not there, or its log can't be written
├── ChildExited           a process that should be up has ended
├── PortTaken             somebody bound a port between our look and our use of it
├── StrangerAnswers       a node of another chain answers where ours should
├── FaucetEmpty           the faucet holds less than was asked for
├── NotReadyInTime        a condition did not come true before its deadline
├── DevnetAlreadyUp       another supervisor holds the home
├── DevnetNotUp           nothing to stop, ask or fund
├── BadDevnetRecord       devnet.json cannot be read
├── RecordNotWritten      devnet.json cannot be written, as on a full disk
├── ChainOfOtherFormat    the chain of last time was begun by software that kept it otherwise
├── ChainStopped          the chain of last time does not go on
├── ChainStandsStill      its validators run, and more than two thirds of the power don't vote
└── StepFailed            a step of the demo failed, with the tail of its log
Stopped                   a person asked to stop (Ctrl-C): not a failure
"""

from __future__ import annotations


class LocalnetError(Exception):
    """Something a person can mend; the message says what, why and what next."""


class Stopped(Exception):
    """A person asked to stop."""


class NoFreePort(LocalnetError):
    """No port in the range could be bound."""

    def __init__(self, host: str, first: int, last: int) -> None:
        """Keep the range."""
        super().__init__(f"no free port on {host} from {first} to {last}; next: choose another with --rpc-port")
        self.host = host
        self.first = first
        self.last = last


class CannotStart(LocalnetError):
    """A command is not there, or its log can't be written."""

    def __init__(self, name: str, path: str, why: str, next_step: str = "make setup installs the commands") -> None:
        """Keep the path of the command or the log."""
        super().__init__(f"{name} cannot be started: {path}: {why}; next: {next_step}")
        self.path = path


class ChildExited(LocalnetError):
    """A process that should be up has ended."""

    def __init__(self, name: str, exit_code: int, log: str, tail: str) -> None:
        """Keep the name, the code and the end of the log."""
        super().__init__(f"{name} {describe_end(exit_code)}; its log is {log}, which ends:\n{_indent(tail)}")
        self.name = name
        self.exit_code = exit_code
        self.log = log
        self.tail = tail


class PortTaken(LocalnetError):
    """Somebody bound a port between our look and our use of it."""

    def __init__(self, what: str, ports: str) -> None:
        """Keep who wanted which ports."""
        super().__init__(f"{what}: another program took {ports} meanwhile; next: start again, or stop that program")
        self.what = what
        self.ports = ports


class StrangerAnswers(LocalnetError):
    """A node of another chain answers where ours should."""

    def __init__(self, url: str, chain_id: str, expected: int, got: int) -> None:
        """Keep the URL and both ids."""
        super().__init__(
            f"{url} is answered by another chain: id {got}, expected {expected} ({chain_id}); next: stop what listens "
            "there, or start again with another --rpc-port"
        )
        self.url = url
        self.expected = expected
        self.got = got


class FaucetEmpty(LocalnetError):
    """The faucet holds less than was asked for."""

    def __init__(self, held: str, asked: str) -> None:
        """Keep both amounts, as people write them."""
        super().__init__(
            f"the faucet holds {held}, asked for {asked} and fees; next: ask for less with --tokens, or start a new "
            "chain with a full faucet: localnet up --reset"
        )


class NotReadyInTime(LocalnetError):
    """A condition did not come true before its deadline."""

    def __init__(self, what: str, deadline_seconds: float, last: str = "") -> None:
        """Keep what was waited for and what was seen last."""
        seen = f"; seen last: {last}" if last else ""
        super().__init__(f"waited {deadline_seconds:.0f} s for {what}{seen}")
        self.what = what
        self.deadline_seconds = deadline_seconds


class DevnetAlreadyUp(LocalnetError):
    """Another supervisor holds the home."""

    def __init__(self, home: str, pid: int, home_option: str) -> None:
        """Keep the home and the supervisor's pid; ``home_option`` is what a hint's command needs."""
        super().__init__(f"a devnet is already up in {home} (process {pid}); next: localnet down{home_option}")
        self.home = home
        self.pid = pid


class DevnetNotUp(LocalnetError):
    """Nothing to stop, ask or fund."""

    def __init__(self, home: str, home_option: str) -> None:
        """Keep the home; ``home_option`` is what a hint's command needs."""
        super().__init__(f"no devnet is up in {home}; next: localnet up --detach{home_option}")
        self.home = home


class BadDevnetRecord(LocalnetError):
    """devnet.json cannot be read."""

    def __init__(self, path: str, why: str) -> None:
        """Keep the path and the reason."""
        super().__init__(f"{path} cannot be read: {why}; next: remove it if no devnet is up")
        self.path = path


class RecordNotWritten(LocalnetError):
    """devnet.json cannot be written; the one before is still there."""

    def __init__(self, path: str, why: str) -> None:
        """Keep the path and the reason."""
        super().__init__(f"{path} cannot be written: {why}; next: make room on that disk, or give another --home")
        self.path = path


class ChainOfOtherFormat(LocalnetError):
    """The chain of last time was begun by software that kept it otherwise."""

    def __init__(self, home: str, expected: int, got: str, home_option: str) -> None:
        """Keep both formats; ``home_option`` is what a hint's command needs."""
        super().__init__(
            f"the chain in {home} was begun with format {got}, this software goes on with format {expected}; next: "
            f"localnet up --reset{home_option} starts a new chain, with new accounts and empty stores; or use the "
            "software that began this one"
        )
        self.expected = expected
        self.got = got


class ChainStopped(LocalnetError):
    """The chain of last time does not go on."""

    def __init__(self, home: str, why: str, home_option: str) -> None:
        """Keep the reason, with the end of a log; ``home_option`` is what a hint's command needs."""
        super().__init__(f"the chain of last time in {home} does not go on: {why.replace('; next: ', ', next: ')}")
        self.next_step = (
            "mend what the log names; or, where other software has begun this chain: localnet up "
            f"--reset{home_option} starts a new one, with new accounts and empty stores"
        )


class ChainStandsStill(LocalnetError):
    """The validators run, but no blocks come: others, whose votes are needed, don't."""

    def __init__(self, home: str, found: str, home_option: str) -> None:
        """Keep what was found, with what to do; ``home_option`` is what a hint's command needs."""
        what, _, step = found.partition("; next: ")
        super().__init__(f"the devnet in {home} runs, but isn't ready: {what}")
        self.next_step = (
            f"{step}; it runs on, and is ready when they vote. Or: localnet down{home_option}, then localnet up "
            f"--reset{home_option} for a new chain"
        )


class HomeNotUsable(LocalnetError):
    """The home can't be made or written."""

    def __init__(self, path: str, why: str) -> None:
        """Keep the path and the reason."""
        super().__init__(f"{path} can be no home: {why}; next: give another --home, a folder that you may write to")
        self.path = path


class StepFailed(LocalnetError):
    """A step of the demo failed."""

    def __init__(self, step: str, why: str, next_step: str, tail: str = "") -> None:
        """Keep the parts; the end of the log comes last, indented."""
        log = f"\n  log:\n{_indent(tail)}" if tail else ""
        super().__init__(f"failed at: {step}\n  why:  {why}\n  next: {next_step}{log}")
        self.step = step
        self.why = why


def describe_end(exit_code: int | None) -> str:
    """Say how a process ended."""
    if exit_code is None:
        return "runs"
    return f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
