"""The page at ``/``: the status for people, without scripts."""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#223}"
    "table{border-collapse:collapse;width:100%}td{padding:.25rem .5rem;border-bottom:1px solid #dde;"
    "overflow-wrap:anywhere}td:first-child{width:12rem;color:#556}"
    ".bar{background:#dde;height:.8rem}.bar div{background:#2a7;height:.8rem}"
)


def render_page(status: dict[str, Any]) -> str:
    """Return the page as HTML."""
    space = status["space"]
    percent = min(100, 100 * space["used_bytes"] // max(1, space["capacity_bytes"]))
    sections = "".join(
        f"<h2>{escape(name.replace('_', ' '))}</h2><table>{_render_rows(status[name])}</table>"
        for name in ("node", "income", "chain", "space", "repair", "scrub", "audits", "collector", "found_at_start")
    )
    tiers = "".join(
        f"<tr><td>{escape(tier['name'])}</td><td>{tier['used_bytes']:,} bytes, {escape(tier['durability'])}, "
        f"on {escape(tier['medium'])}, repair {escape(tier['repair'])}</td></tr>"
        for tier in status["tiers"]
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Storage node</title><style>{_STYLE}</style><h1>Storage node</h1>"
        f"<p>{percent} % of {space['capacity_bytes']:,} bytes used, {space['num_shards']:,} shards</p>"
        f"<div class=bar><div style='width:{percent}%'></div></div><h2>tiers</h2><table>{tiers}</table>{sections}"
        "<p><a href=/v1/status>JSON</a> <a href=/metrics>metrics</a></p></html>"
    )


def _render_rows(values: dict[str, Any]) -> str:
    return "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{escape(_show(value))}</td></tr>"
        for name, value in values.items()
    )


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items()) or "-"
    if isinstance(value, bool) or not isinstance(value, int):
        return "-" if value is None else str(value)
    return f"{value:,}"
