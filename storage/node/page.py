"""The page at ``/``: the status for people, without scripts."""

from __future__ import annotations

from html import escape
from typing import Any

from storage.amounts import format_wei
from storage.sizes import format_size

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#223}"
    "table{border-collapse:collapse;width:100%}td{padding:.25rem .5rem;border-bottom:1px solid #dde;"
    "overflow-wrap:anywhere}td:first-child{width:12rem;color:#556}"
    ".bar{background:#dde;height:.8rem}.bar div{background:#2a7;height:.8rem}"
)


def render_page(status: dict[str, Any]) -> str:
    """Return the page as HTML."""
    space = status["space"]
    permille = min(1000, 1000 * space["used_bytes"] // max(1, space["capacity_bytes"]))
    percent = f"{permille // 10}.{permille % 10}"
    sections = "".join(
        f"<h2>{escape(name.replace('_', ' '))}</h2><table>{_render_rows(status[name])}</table>"
        for name in (
            "income",
            "audits",
            "repair",
            "scrub",
            "space",
            "disk",
            *(("memory",) if status["memory"] else ()),
            "collector",
            "chain",
            "node",
            "found_at_start",
        )
    )
    tiers = "".join(
        f"<tr><td>{escape(tier['name'])}</td><td>{format_size(tier['used_bytes'])}, {escape(tier['durability'])}, "
        f"on {escape(tier['medium'])}, repair {escape(tier['repair'])}</td></tr>"
        for tier in status["tiers"]
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Storage node</title><style>{_STYLE}</style><h1>Storage node</h1>"
        f"<p>{format_size(space['used_bytes'])} of {format_size(space['capacity_bytes'])} used, {percent} %, "
        f"{space['num_shards']:,} shards; {_describe_chain(status)}</p>"
        f"<div class=bar><div style='width:{percent}%'></div></div><h2>tiers</h2><table>{tiers}</table>{sections}"
        "<p><a href=/v1/status>JSON</a> <a href=/metrics>metrics</a></p></html>"
    )


def _render_rows(values: dict[str, Any]) -> str:
    return "".join(
        f"<tr><td>{escape(_name(name))}</td><td>{escape(_show(name, value))}</td></tr>"
        for name, value in values.items()
    )


def _describe_chain(status: dict[str, Any]) -> str:
    """Say in a line whether the node earns: on the chain, with a seat."""
    chain = status["chain"]
    if chain["height"] is None:
        return "the chain has not been reached yet"
    epoch = max(chain["seats"], key=int, default="-")
    seats = ", ".join(map(str, chain["seats"].get(epoch, ()))) or "none"
    away = "" if chain["is_reachable"] else ", which does not answer now"
    return f"height {chain['height']:,}{away}; seats in epoch {escape(epoch)}: {seats}"


def _name(name: str) -> str:
    return name.removesuffix("_wei").removeprefix("is_").replace("num_", "").replace("_", " ")


def _show(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_wei"):
        return format_wei(value)
    if isinstance(value, int) and "bytes" in name:
        return f"{format_size(value)} ({value:,} bytes)"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items()) or "-"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)
