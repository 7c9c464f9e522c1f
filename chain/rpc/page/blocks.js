// Blocks and transactions, and what the field at the top finds: a block, a transaction, an account.
import {ago, at, bytes, chip, count, hash, list, make, money, plural, short, table, tokens, who} from "./dom.js";
import {answerNode} from "./read.js";

export function showChain(overview) {
  const chain = overview.chain, blocks = chain.blocks, [newest, oldest] = [blocks[0], blocks[blocks.length - 1]];
  at("chain").textContent = `${chain.chainId} · EVM chain id ${chain.evmChainId}`;
  at("height").textContent = count(chain.height);
  const span = newest.height > oldest.height && oldest.height > 0 ? newest.time - oldest.time : 0;
  at("pace").textContent = span ? `a block each ${(span / (newest.height - oldest.height)).toFixed(2)} s` : "";
  const sum = blocks.reduce((total, block) => total + block.transactions, 0);
  at("rate").textContent = span ? `${(sum / span).toFixed(1)} a second` : count(sum);
  at("rateNote").textContent = `${plural(sum, "transaction")} in the newest ${blocks.length} blocks`;
  const most = Math.max(1, ...blocks.map(block => block.transactions));
  at("bars").replaceChildren(...blocks.slice().reverse().map(block => {
    const bar = make("button", {type: "button", class: block.transactions ? "full" : null, title: `block ${block.height}: ${plural(block.transactions, "transaction")}, ${count(block.gasUsed)} gas`, click: () => find(String(block.height))});
    bar.style.height = `${Math.max(10, 100 * block.transactions / most)}%`;
    return bar;
  }));
  at("blockList").replaceChildren(table(["Height", "#Transactions", "#Gas", "Proposer"], blocks.slice(0, 14).map(block => [
    open(String(block.height), count(block.height)), String(block.transactions), count(block.gasUsed), hash(block.proposer, "the proposer's operator")]), "No blocks."));
  at("transactions").replaceChildren(transactionTable(overview.transactions));
  list(at("facts"), [["Chain id", chain.chainId], ["EVM chain id", String(chain.evmChainId)], ["Genesis hash", make("span", {class: "mono"}, chain.genesisHash)], ["App hash", make("span", {class: "mono"}, chain.appHash)],
    ["Base fee", `${tokens(chain.baseFee)} a gas, burned`], ["Gas of a block", count(chain.gasLimit)]]);
}

const open = (query, text) => make("button", {type: "button", class: "link", title: query, click: () => find(query)}, text);

function nameCall(transaction) {
  const call = transaction.call;
  if (call.kind === "system") return make("span", {}, call.contract + ".", make("b", {}, call.function || "?"));
  if (call.kind === "create") return make("span", {}, "creates ", hash(call.contract));
  return make("span", {}, call.kind === "transfer" ? "transfer to " : `calls ${call.function} of `, who(transaction.to));
}

function writeArguments(values) {
  const write = value => Array.isArray(value) ? `[${value.map(write).join(", ")}]` : value !== null && typeof value === "object" ? `{${writeArguments(value)}}` : /^0x/.test(value) ? short(String(value)) : String(value);
  return Object.entries(values).map(([name, value]) => `${name} ${write(value)}`).join(", ");
}

function transactionTable(transactions) {
  return table(["Transaction", "Block", "From", "What", "#Value", "Result"], transactions.map(each => [
    open(each.hash, short(each.hash)), open(String(each.height), count(each.height)), who(each.from),
    make("div", {}, nameCall(each), make("div", {class: "arguments"}, cut(writeArguments(each.call.arguments))), each.error ? make("div", {class: "failed"}, each.error) : null),
    each.value === "0" ? "" : money(each.value), chip(each.status ? "DONE" : "FAILED")]),
    "No transaction in the newest 500 blocks.");
}
const cut = text => text.length > 140 ? text.slice(0, 140) + " …" : text;

function events(list) {
  if (!list.length) return null;
  return make("div", {}, make("h2", {}, "Events"), ...list.map(each => make("div", {}, make("b", {}, each.event ? `${each.contract}.${each.event} ` : `of ${short(each.contract)} `), make("span", {class: "arguments"}, writeArguments(each.fields)))));
}

function blockNode(block) {
  const facts = make("dl", {});
  list(facts, [["Hash", make("span", {class: "mono"}, block.hash)], ["Parent", block.height ? make("button", {type: "button", class: "link", click: () => find(String(block.height - 1))}, short(block.parentHash)) : "none"], ["App hash", make("span", {class: "mono"}, block.appHash)],
    ["Time", `${new Date(block.time * 1000).toISOString().replace("T", " ").slice(0, 19)} UTC, ${ago(block.time)}`], ["Proposer", make("span", {class: "mono"}, block.proposer)],
    ["Gas", `${count(block.gasUsed)} of ${count(block.gasLimit)}`], ["Size", bytes(block.sizeBytes)]]);
  const more = block.numTransactions - block.transactions.length;
  return make("div", {}, make("h3", {}, `Block ${count(block.height)}`), facts, make("p", {}), block.transactions.length ? transactionTable(block.transactions) : make("div", {class: "empty"}, "No transactions."),
    more ? make("div", {class: "faint"}, `and ${plural(more, "transaction")} more`) : null, events(block.timerEvents));
}

function transactionNode(found) {
  const facts = make("dl", {});
  list(facts, [["Hash", make("span", {class: "mono"}, found.hash)], ["Status", make("span", {}, chip(found.status ? "DONE" : "FAILED"), found.error ? make("span", {class: "failed"}, " " + found.error) : "")],
    ["Block", make("span", {}, open(String(found.height), count(found.height)), `, place ${found.index}, ${ago(found.time)}`)], ["From", make("span", {class: "mono"}, found.from)], ["To", found.to ? make("span", {class: "mono"}, found.to) : "a new contract"],
    ["What", nameCall(found)], ["Arguments", answerNode(found.call.arguments)], ["Value", money(found.value)], ["Nonce", String(found.nonce)], ["Fee", `${money(found.fee)} for ${count(found.gasUsed)} gas`]]);
  return make("div", {}, make("h3", {}, "Transaction"), facts, make("p", {}), events(found.events));
}

async function accountNode(address) {
  const ask = (method, id) => ({jsonrpc: "2.0", id, method, params: [address, "latest"]});
  const response = await fetch("./", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify([ask("eth_getBalance", 1), ask("eth_getTransactionCount", 2), ask("eth_getCode", 3)])});
  const [balance, nonce, code] = (await response.json()).map(each => { if (each.error) throw new Error(each.error.message); return each.result; });
  const facts = make("dl", {});
  list(facts, [["Address", make("span", {class: "mono"}, address)], ["Balance", money(balance)], ["Transactions sent", count(Number(nonce))], ["Code", code === "0x" ? "none: a person's account" : code === "0xfe" ? "a system contract" : bytes((code.length - 2) / 2)]]);
  return make("div", {}, make("h3", {}, "Account"), facts);
}

async function fetchJson(path) {
  const answer = await (await fetch(path)).json();
  if (answer.error) throw new Error(answer.error);
  return answer;
}

let newest = 0;
export async function find(query) {
  const text = query.trim().replaceAll(",", ""), mine = ++newest;
  if (!text) return;
  const show = node => { if (mine !== newest) return; at("found").lastElementChild.replaceChildren(node); at("found").hidden = false; at("found").scrollIntoView({block: "nearest"}); };
  try {
    if (/^\d{1,18}$/.test(text)) show(blockNode(await fetchJson("api/blocks/" + text)));
    else if (/^0x[0-9a-fA-F]{64}$/.test(text)) show(transactionNode(await fetchJson("api/transactions/" + text)));
    else if (/^0x[0-9a-fA-F]{40}$/.test(text)) show(await accountNode(text));
    else throw new Error(`“${text.slice(0, 80)}” is no height, no transaction hash (0x and 64 digits) and no address (0x and 40 digits).`);
  } catch (error) {
    show(make("div", {class: "failed"}, error.message));
  }
}
