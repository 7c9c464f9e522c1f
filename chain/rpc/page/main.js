// The page's clock: asks the node once a second, shows the tab that the address names, keeps the last that was read.
import {at, count, make, nameMembers} from "./dom.js";
import {find, showChain} from "./blocks.js";
import {learnLossUnit} from "./recipe.js";
import {showForm} from "./read.js";
import {showStorage} from "./stores.js";
import {showNoRun, showRun, showRuns} from "./training.js";
import {showStaking} from "./validators.js";

const REFRESH_MS = 1000, HIDDEN_MS = 5000, TIMEOUT_MS = 5000;
const TABS = {training: "Training", blocks: "Blocks", validators: "Validators", storage: "Storage", read: "Read contracts"};
const THEMES = ["", "light", "dark"];
let chosen = new URLSearchParams(location.search).get("run"), failedSince = 0, shown = "", timer = 0, newest = 0;

function currentTab() {
  const name = location.hash.slice(1).split("?")[0];
  return name in TABS ? name : "training";
}

function showTab() {
  const current = currentTab();
  for (const name of Object.keys(TABS)) {
    at(name).hidden = name !== current;
    at("tab-" + name).setAttribute("aria-selected", String(name === current));
  }
  if (current === "read") showForm().catch(error => at("answer").replaceChildren(make("div", {class: "failed"}, error.message)));
}

function show(overview) {
  const blocks = overview.chain.blocks, [newest, oldest] = [blocks[0], blocks[blocks.length - 1]];
  const blockSeconds = oldest.height > 0 && newest.height > oldest.height ? (newest.time - oldest.time) / (newest.height - oldest.height) : 0;
  nameMembers(overview.run ? overview.run.members.map(member => member.worker) : []);
  showChain(overview);
  showRuns(overview.runs, overview.run ? overview.run.info.run : null, run => { chosen = String(run); history.replaceState(null, "", "?run=" + chosen + location.hash); refresh(); });
  if (overview.run) showRun(overview.run);
  else showNoRun();
  showStaking(overview.staking, overview.chain);
  showStorage(overview.storage, blockSeconds);
}

function isSelecting() {
  // Redrawing would take away what somebody is marking with the mouse.
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && selection.type === "Range";
}

async function refresh() {
  const mine = ++newest;  // an answer for another run, asked before, must not come over a later one
  clearTimeout(timer);
  try {
    const response = await fetch("api/overview" + (chosen ? "?run=" + encodeURIComponent(chosen) : ""), {signal: AbortSignal.timeout(TIMEOUT_MS)});
    const text = await response.text(), overview = JSON.parse(text);
    if (mine !== newest) return;
    if (overview.error) throw new Error(overview.error);
    if (overview.run) await learnLossUnit(overview.run.info);
    if (mine !== newest) return;
    failedSince = 0;
    at("banner").hidden = true;
    at("fresh").className = "live";
    at("fresh").lastElementChild.textContent = "block " + count(overview.chain.height);
    if (text !== shown && !isSelecting()) { shown = text; show(overview); }
  } catch (error) {
    if (mine !== newest) return;
    failedSince = failedSince || Date.now();
    at("fresh").className = "lost";
    at("banner").hidden = false;
    at("banner").textContent = `No fresh data for ${Math.round((Date.now() - failedSince) / 1000)} s: ${error.message}. What stands below is the last that was read.`;
  }
  timer = setTimeout(refresh, document.hidden ? HIDDEN_MS : REFRESH_MS);
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  at("theme").title = `Colours: ${name || "as the system has them"}`;
}

at("tabs").append(...Object.entries(TABS).map(([name, title]) => make("a", {href: "#" + name, id: "tab-" + name, role: "tab", "aria-controls": name}, title)));
addEventListener("hashchange", showTab);
at("lookup").addEventListener("submit", event => { event.preventDefault(); find(at("query").value); });
at("dismiss").addEventListener("click", () => { at("found").hidden = true; });
at("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "") + 1) % THEMES.length];
  localStorage.setItem("theme", next);
  setTheme(next);
});
setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "");
showTab();
refresh();
