"""Shaped links of the kernel's own for a benchmark: a hub and spokes, each in a network namespace, veth and TBF.

    spoke 0 (10.77.1.2) --- hub (10.77.0.1) --- spoke 1 (10.77.2.2)

Each veth is shaped at both of its ends, so a spoke's link has the rate in each direction.  Without root the caller
moves itself into a user namespace first (`enter_user_namespace`).  Invariant: whatever was made is removed, also after
an error; what a killed process left is removed by the next; nothing else is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HUB_ADDRESS = "10.77.0.1"
"""Of the hub, reached from every spoke."""

COMMAND_SECONDS = 20.0
"""For one call of ip or tc."""

BURST_SECONDS = 0.004
"""Of the rate that may pass at once: one tick of a kernel of 250 Hz, else TBF cannot reach its rate."""

LEAST_BURST_BYTES = 16_384
"""Several whole packets."""

QUEUE_SECONDS = "200ms"
"""Longest that a packet waits in the shaper before it is dropped: some bandwidth-delay products of TCP."""

_INSIDE = "--inside-user-namespace"
_PREFIX = "arch"
"""Of the namespaces' names; the process's number follows."""


class NoShapedLinks(Exception):
    """The machine cannot shape links; says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Namespaces that are there."""

    hub: str
    """Name of the hub's namespace."""
    spokes: tuple[str, ...]
    """Names of the spokes'."""
    paced_bits: int = 0
    """What the ranks shape themselves: nothing, the kernel does."""

    def wrap(self, namespace: str, command: list[str]) -> list[str]:
        """Return the command that runs ``command`` inside a namespace."""
        return ["ip", "netns", "exec", namespace, *command]

    def set_rate(self, bits_a_second: int) -> None:
        """Shape all links in both directions; 0 takes the shapers off."""
        for index, spoke in enumerate(self.spokes):
            for namespace, device in ((spoke, "uplink"), (self.hub, f"spoke{index}")):
                if bits_a_second == 0:
                    _run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], is_allowed_to_fail=True)
                    continue
                burst = max(LEAST_BURST_BYTES, int(bits_a_second / 8 * BURST_SECONDS))
                shaper = ["tbf", "rate", f"{bits_a_second}bit", "burst", str(burst), "latency", QUEUE_SECONDS]
                _run(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shaper])


@contextmanager
def make_links(num_spokes: int) -> Iterator[Links]:
    """Make the namespaces and links, and remove them. Raises `NoShapedLinks`."""
    _check_tools()
    _remove_leftovers()
    prefix = f"{_PREFIX}{os.getpid()}"
    links = Links(hub=f"{prefix}hub", spokes=tuple(f"{prefix}s{index}" for index in range(num_spokes)))
    try:
        for name in (links.hub, *links.spokes):
            _run(["ip", "netns", "add", name])
            _run(["ip", "-n", name, "link", "set", "lo", "up"])
        _run(["ip", "-n", links.hub, "address", "add", f"{HUB_ADDRESS}/32", "dev", "lo"])
        forward = ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        _run(links.wrap(links.hub, forward))
        for index, spoke in enumerate(links.spokes):
            _connect(links.hub, spoke, index)
        links.set_rate(1_000_000_000)  # a kernel without TBF says so here
        links.set_rate(0)
        yield links
    finally:
        for name in (links.hub, *links.spokes):
            _run(["ip", "netns", "del", name], is_allowed_to_fail=True)


def enter_user_namespace(module: str) -> None:
    """Without root: start ``module`` again inside a user namespace of its own, where it may make networks.

    Raises `NoShapedLinks`, before anything has changed, where it may not.
    """
    if os.geteuid() == 0 or _INSIDE in sys.argv:
        sys.argv = [argument for argument in sys.argv if argument != _INSIDE]
        return
    _check_tools()
    if shutil.which("unshare") is None:
        raise NoShapedLinks("not root, and unshare is not installed (Debian, Ubuntu: apt-get install util-linux)")
    enter = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    _run([*enter, "true"])
    again = 'ip link set lo up && mount -t tmpfs tmpfs /run && exec "$@"'
    command = [sys.executable, "-m", module, *sys.argv[1:], _INSIDE]
    os.execvp("unshare", [*enter, "sh", "-c", again, "sh", *command])


def read_link_bytes() -> tuple[int, int]:
    """Return what this namespace's uplink has sent and received, as the kernel counts it: whole frames."""
    folder = Path("/sys/class/net/uplink/statistics")
    return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())


def _check_tools() -> None:
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoShapedLinks(f"{tool} is not installed (Debian, Ubuntu: apt-get install iproute2)")


def _remove_leftovers() -> None:
    """Remove the namespaces of processes that were killed before they could."""
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    for line in listed.stdout.splitlines():
        found = re.fullmatch(rf"{_PREFIX}([0-9]+)(hub|s[0-9]+)", line.split()[0])
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            _run(["ip", "netns", "del", found[0]], is_allowed_to_fail=True)


def _connect(hub: str, spoke: str, index: int) -> None:
    device, subnet = f"spoke{index}", f"10.77.{index + 1}"
    _run(["ip", "-n", hub, "link", "add", device, "type", "veth", "peer", "name", "uplink", "netns", spoke])
    for namespace, name, address in ((hub, device, f"{subnet}.1/24"), (spoke, "uplink", f"{subnet}.2/24")):
        _run(["ip", "-n", namespace, "address", "add", address, "dev", name])
        _run(["ip", "-n", namespace, "link", "set", name, "up"])
    _run(["ip", "-n", spoke, "route", "add", "default", "via", f"{subnet}.1"])


def _run(command: list[str], *, is_allowed_to_fail: bool = False) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode != 0 and not is_allowed_to_fail:
        raise NoShapedLinks(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
