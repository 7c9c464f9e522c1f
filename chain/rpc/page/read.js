// The form that reads a system contract: choose contract and function, type arguments, see the decoded answer.
import {at, make} from "./dom.js";

let contracts = null, typed = {}, newest = 0;

export async function showForm() {
  if (contracts) return;
  contracts = await (await fetch("api/interface")).json();
  const wanted = new URLSearchParams(location.hash.split("?")[1] || "");
  for (const [name, value] of wanted) typed[name] = value;
  drawForm(wanted.get("contract") || "Training", wanted.get("function") || "run");
}

function drawForm(contractName, functionName) {
  const contract = contracts.find(each => each.contract === contractName) || contracts[0];
  const chosen = contract.functions.find(each => each.name === functionName) || contract.functions[0];
  const pick = (id, label, names, value, change) => {
    const select = make("select", {id, change: event => change(event.target.value)}, ...names.map(name => make("option", {value: name}, name)));
    select.value = value;
    return make("label", {}, make("span", {}, label), select);
  };
  const fields = chosen.inputs.map(input => make("label", {}, make("span", {}, input.name, " ", make("code", {class: "faint"}, input.type)),
    make("input", {name: input.name, placeholder: input.example, value: typed[input.name] ?? (input.type.startsWith("uint") ? (input.name === "run" || input.name === "proposal" ? "1" : input.name === "count" ? "10" : "0") : ""), autocomplete: "off", spellcheck: "false", input: event => { typed[input.name] = event.target.value; }})));
  at("form").replaceChildren(
    pick("contract", "Contract", contracts.map(each => each.contract), contract.contract, name => drawForm(name, "")),
    pick("function", "Function", contract.functions.map(each => each.name), chosen.name, name => drawForm(contract.contract, name)),
    make("p", {class: "doc"}, chosen.doc), ...fields,
    make("button", {class: "primary", id: "ask", type: "submit"}, "Read"),
    make("p", {class: "faint"}, "The same from web3.py, cast or a contract: ", make("code", {}, chosen.signature), " at ", make("span", {class: "mono"}, contract.address)));
  at("form").onsubmit = event => { event.preventDefault(); ask(contract.contract, chosen); };
}

async function ask(contract, chosen) {
  const mine = ++newest;
  const query = new URLSearchParams(chosen.inputs.map(input => [input.name, at("form").elements[input.name].value]));
  history.replaceState(null, "", "#read?" + new URLSearchParams([["contract", contract], ["function", chosen.name], ...query]));
  try {
    const answer = await (await fetch(`api/read/${contract}/${chosen.name}?${query}`)).json();
    if (mine !== newest) return;
    if (answer.error) throw new Error(answer.error);
    at("answered").textContent = `at block ${answer.height}`;
    at("answer").replaceChildren(answerNode(answer.answer));
  } catch (error) {
    if (mine !== newest) return;
    at("answered").textContent = "";
    at("answer").replaceChildren(make("div", {class: "failed"}, error.message));
  }
}

export function answerNode(value) {
  if (Array.isArray(value)) {
    if (!value.length) return make("span", {class: "faint"}, "none");
    return make("dl", {class: "inner"}, ...value.flatMap((each, index) => [make("dt", {}, String(index)), make("dd", {}, answerNode(each))]));
  }
  if (value !== null && typeof value === "object") {
    const entries = Object.entries(value);
    if (!entries.length) return make("span", {class: "faint"}, "none");
    return make("dl", {class: "inner"}, ...entries.flatMap(([name, each]) => [make("dt", {}, name), make("dd", {}, answerNode(each))]));
  }
  const text = String(value);
  const readable = /^0x([0-9a-f]{2}){40,}$/.test(text) ? asText(text) : "";
  return readable ? make("pre", {class: "mono"}, readable) : make("span", {class: /^0x|^\d/.test(text) ? "mono" : null}, text === "" ? "(empty)" : text);
}

export const fromHex = hex => Uint8Array.from(hex.slice(2).match(/../g), pair => parseInt(pair, 16));

function asText(hex) {
  // A recipe comes as bytes; shown as text where it is text.
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(fromHex(hex));
    return /^[\x20-\x7e\s]*$/.test(text) ? text : "";
  } catch { return ""; }
}
