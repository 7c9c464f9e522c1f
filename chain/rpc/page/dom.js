// Elements, and how amounts, sizes and names are written. Text only ever goes in as text: nothing here parses HTML.
export const at = id => document.getElementById(id);

export function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

export function draw(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

export const count = value => Number(value).toLocaleString("en");
export const plural = (number, word) => `${count(number)} ${word}${Number(number) === 1 ? "" : "s"}`;
export const short = hex => hex.includes("…") ? hex.slice(0, 10) + "…" : hex.length > 14 ? hex.slice(0, 8) + "…" + hex.slice(-4) : hex;
export const isZero = hex => /^0x0*$/.test(hex);
export const words = name => name.replace(/([a-z])([A-Z])/g, "$1 $2").replace(/^./, letter => letter.toUpperCase()).replace(/ [A-Z](?=[a-z])/g, found => found.toLowerCase());
export const hash = (hex, note) => make("code", {title: (note ? note + " " : "") + hex}, short(hex));

const TONE = {
  ACCEPTED: "good", FINAL: "good", CERTIFIED: "good", RUNNING: "good", ACTIVE: "good", REGISTERED: "good", FINISHED: "good", PASSED: "good", DONE: "good",
  REFUSED: "bad", VOID: "bad", DISPUTE: "bad", DROPPED: "bad", FAILED: "bad", JAILED: "bad",
  OPEN: "live", REVEAL: "live", READY: "live",
  ATTEST: "wait", PENDING: "wait", WAITING: "wait", PAUSED: "wait", CREATED: "wait", JOINED: "wait", RETIRING: "wait", FREE: "wait"};
export const tone = word => TONE[word] || "";
export const chip = (word, title) => make("span", {class: "chip " + tone(word), title}, word.toLowerCase().replaceAll("_", " "));

export function tokens(wei) {
  // As contracts/bindings/amounts.py writes them: six significant digits, gwei only below a millionth of a token.
  const amount = Number(BigInt(wei));
  if (amount > 0 && amount < 1e12) return `${Number((amount / 1e9).toPrecision(6))} gwei`;
  const value = amount / 1e18;
  return value >= 1e5 ? count(Math.round(value)) : Number(value.toPrecision(6)).toLocaleString("en", {maximumFractionDigits: 12});
}

export const money = wei => { const text = tokens(wei); return text.endsWith("gwei") ? text : `${text} token${text === "1" ? "" : "s"}`; };

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) { value /= 1000; index += 1; }
  return (index === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + " " + units[index];
}

export function ago(seconds) {
  const age = Math.max(0, Math.round(Date.now() / 1000 - seconds));
  return age < 90 ? `${age} s ago` : age < 5400 ? `${Math.round(age / 60)} min ago` : age < 129600 ? `${Math.round(age / 3600)} h ago` : `${Math.round(age / 86400)} days ago`;
}

// Okabe and Ito's colours without black and yellow, which one of the two themes would swallow: told apart with any kind of colour vision.
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"], SHAPES = ["dot", "dot ring", "dot square", "dot square ring"];
let ranks = new Map();

export function nameMembers(addresses) {
  // A run's members in order of joining: each has a colour of its own, from the seventh on with another shape. Others are grey.
  ranks = new Map(addresses.map((address, index) => [address, index]));
}

export function who(address) {
  const rank = ranks.get(address), dot = make("span", {class: rank === undefined ? "dot" : SHAPES[Math.floor(rank / PALETTE.length) % SHAPES.length]});
  if (rank !== undefined) dot.style.color = PALETTE[rank % PALETTE.length];
  return make("span", {class: "mono who", title: address}, dot, short(address));
}

export function table(heads, rows, empty) {
  // A head that begins with # is a column of numbers. On a phone each row becomes a small list.
  if (!rows.length) return make("div", {class: "empty"}, empty);
  const names = heads.map(head => head.replace("#", "")), side = heads.map(head => head.startsWith("#") ? "num" : null);
  return make("table", {class: "stack"},
    make("thead", {}, make("tr", {}, ...names.map((name, index) => make("th", {class: side[index]}, name)))),
    make("tbody", {}, ...rows.map(cells => make("tr", {}, ...cells.map((cell, index) => make("td", {class: side[index], "data-label": names[index]}, make("div", {}, cell)))))));
}

export const list = (node, facts) => node.replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
