// Storage nodes, tiers and what they cost.
import {at, bytes, chip, count, make, money, plural, table, who} from "./dom.js";

const FOR = {temporary: "round payloads: gone after use", hot: "newest checkpoints: low latency, repaired", cold: "kept checkpoints: cheapest a month"};
const MONTH_HOURS = 730;  // a twelfth of 8,760

export function showStorage(storage, blockSeconds) {
  const offered = storage.nodes.reduce((sum, node) => sum + (node.state === "REGISTERED" ? Number(node.capacityBytes) : 0), 0);
  at("epoch").textContent = `committee epoch ${storage.epoch}, ${plural(storage.nodes.length, "node")}, ${bytes(offered)} offered`;
  at("nodes").replaceChildren(table(["Operator", "State", "#Capacity", "Address", "#Since block", "Key"], storage.nodes.map(node => [
    who(node.operator), chip(node.state), bytes(node.capacityBytes), make("span", {class: "mono soft"}, node.url), count(node.registeredHeight), make("code", {title: node.key}, node.key.slice(0, 10) + "…")]),
    "No storage node is registered: storage-node start --chain " + location.origin));
  const month = storage.blocksPerMonth, defined = MONTH_HOURS * 3600 / month;
  at("pricing").textContent = `by definition a block is ${defined} s, so a month ${count(month)} blocks and an hour ${count(Math.round(month / MONTH_HOURS))}` +
    (blockSeconds ? `; at the measured ${blockSeconds.toFixed(2)} s that month lasts ${(month * blockSeconds / 86400).toFixed(1)} days. ≈ is at the measured pace` : "");
  at("tiers").replaceChildren(table(["Tier", "For", "#1 TB for a month", "#1 MB for an hour", "#Shortest lease", "#Longest lease", "#Least billed"], storage.tiers.map(tier => {
    const hour = BigInt(Math.round(month / MONTH_HOURS)), price = BigInt(tier.picoweiPerByteBlock);
    return [make("b", {}, tier.name), make("span", {class: "soft"}, FOR[tier.name] || ""), money(price * BigInt(month)), money(price * hour * 1000000n / 1000000000000n),
      blocks(tier.minBlocks, blockSeconds), blocks(tier.maxBlocks, blockSeconds), bytes(Number(tier.minBytes))];
  }), "No tiers."));
}

function blocks(number, seconds) {
  const span = Number(number) * seconds;
  const said = !span ? "" : span < 90 ? `${span.toFixed(span < 1 ? 2 : span < 10 ? 1 : 0)} s` : span < 5400 ? `${Math.max(1, Math.round(span / 60))} min` : span < 172800 ? `${Math.round(span / 3600)} h` : span < 63072000 ? `${Math.round(span / 86400)} days` : `${(span / 31536000).toFixed(1)} years`;
  return make("span", {}, plural(number, "block"), said ? make("span", {class: "faint"}, ` ≈ ${said}`) : null);
}
