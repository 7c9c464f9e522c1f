// A run: figures, loss curve, members, and the fate of each update with its reason.
import {at, bytes, chip, count, hash, isZero, list, make, money, plural, short, table, tone, who} from "./dom.js";
import {MICRO, curve} from "./curve.js";
import {lossUnit} from "./recipe.js";

const WHY = {
  VOID_ROUND: "the round was void", MISSING_PAYLOAD: "its payload could not be had", INVALID_PAYLOAD: "its payload did not decode",
  NOT_REVEALED: "its key was not revealed", NOT_DRAWN: "not drawn among the accepted"};
const MARK = {ACCEPTED: "✓", REFUSED: "✕", PENDING: "…"};
let evaluations = [], placed = 0;  // of the curve; where the fates were scrolled to

export function showRuns(runs, current, choose) {
  at("runs").replaceChildren(...runs.map(run => make("button", {type: "button", "aria-pressed": String(run.run === current), click: () => choose(run.run)}, `Run ${run.run} `, chip(run.state))));
}

export function showNoRun() {
  evaluations = [];
  for (const id of ["run", "members", "fates", "curve", "steps"]) at(id).replaceChildren();
  at("rounds").replaceChildren(make("div", {class: "empty"}, "No run yet. Make one: trainer run create demo --key-file owner.key --chain " + location.origin));
}

export function showRun(run) {
  const info = run.info, params = info.params, last = run.evaluations[run.evaluations.length - 1], first = run.evaluations[0];
  at("settled").textContent = `${count(info.numSettled)} of ${count(info.numRoundsTotal)}`;
  at("settledNote").textContent = `${info.numEligible} of ${plural(info.numMembers, "member")} eligible`;
  at("progress").style.width = `${100 * info.numSettled / Math.max(1, info.numRoundsTotal)}%`;
  at("loss").textContent = last ? (last.lossMicro / MICRO).toFixed(3) : "–";
  at("lossNote").textContent = last ? `${lossUnit(info)}, at version ${last.version}` + (last === first ? "" : `; it was ${(first.lossMicro / MICRO).toFixed(3)} at ${first.version}`) : "no evaluation yet";
  const [accepted, refused, seen] = ["accepted", "refused", "tokens"].map(field => run.members.reduce((sum, member) => sum + Number(member[field]), 0));
  at("counted").textContent = count(accepted);
  at("countedNote").textContent = `${count(refused)} refused; ${count(seen)} tokens of text read`;
  at("paid").textContent = money(info.paidRewards);
  at("paidNote").textContent = `${money(info.paidStorage)} to stores; ${money(info.escrow)} left in escrow`;
  const facts = [
    ["State", chip(info.state)], ["Owner", who(info.owner)],
    ["Head", make("span", {}, `version ${info.headVersion} `, hash(info.headRoot, "root"))],
    ["Checkpoint", make("span", {}, `version ${info.certifiedVersion} `, hash(info.certifiedRoot, "root"))],
    ["Recipe", hash(info.recipeDigest, "keccak256")],
    ["Exchange", `${plural(params.numFragments, "fragment")}, ${params.overlap ? "one round late" : "synchronous"}`],
    ["Inner steps", `${info.localSteps} between two exchanges of a tensor`],
    ["Rank", info.rank ? String(info.rank) : "as in the recipe"],
    ["Pay", params.rewardPerUpdate === "0" ? "none" : `${money(params.rewardPerUpdate)} an accepted update`], ["Bond", `${money(params.memberBond)} a member`],
    ["Joining", params.isAllowListed ? "allow-listed" : "open"]];
  if (info.numEligible > 0 && info.numEligible < 4) facts.push(["Note", "fewer than four members: votes survive crashes, not lies"]);
  list(at("run"), facts);
  at("curveUnit").textContent = lossUnit(info);
  evaluations = run.evaluations;
  drawCurve();
  showSteps(run.rounds, params.isSealed);
  showFates(run);
  showMembers(run.members);
  at("rounds").replaceChildren(...(run.rounds.length ? run.rounds.map(showRound) : [make("div", {class: "empty"}, "No round has opened yet.")]));
}

const STEPS = [
  ["OPEN", "Workers train on their own, put an update into the stores and commit its digest here."],
  ["REVEAL", "In sealed runs each now opens its update, so that none could be copied before."],
  ["ATTEST", "Each sums the same updates in integers and votes for the root of the model that comes out."],
  ["FINAL", "Enough of them (from four members on more than two thirds) named one root: that is the model now, a new version. Accepted updates are paid."],
  ["VOID", "No update came, or no agreement: the model stays as it was, and the next round goes on."]];

function showSteps(rounds, isSealed) {
  // What each stage of a round is, and which rounds stand there now.
  at("steps").replaceChildren(...STEPS.filter(([state]) => state !== "REVEAL" || isSealed).map(([state, what]) => {
    const here = rounds.filter(round => round.info.state === state).map(round => round.info.round).sort((one, other) => other - one);
    const said = here.length ? `round ${here.slice(0, 3).join(", ")}${here.length > 3 ? " …" : ""}` : "";
    return make("li", {class: here.length && tone(state) !== "good" && tone(state) !== "bad" ? "now" : null}, make("div", {}, chip(state), make("b", {}, said)), make("span", {class: "soft"}, what));
  }));
}

function showFates(run) {
  const rounds = run.rounds.slice().reverse(), workers = run.members.filter(member => member.state !== "LEFT" || rounds.some(round => round.updates.some(update => update.member === member.worker)));
  if (!rounds.length || !workers.length) { at("fates").replaceChildren(make("div", {class: "empty"}, "Nothing yet.")); return; }
  const cell = (member, round) => {
    const update = round.updates.find(each => each.member === member.worker), where = `round ${round.info.round}: `;
    if (!update) return make("td", {class: "cell none", title: where + (round.info.state === "OPEN" ? "nothing sent yet" : "nothing sent")});
    const why = update.reason === "NONE" ? "" : ", " + (WHY[update.reason] || update.reason);
    return make("td", {class: "cell " + tone(update.fate), title: `${where}${update.fate.toLowerCase()}${why}, in block ${update.height}`}, MARK[update.fate] || "");
  };
  const state = round => make("td", {class: "cell " + tone(round.info.state), title: `round ${round.info.round} is ${round.info.state}`}, round.info.state === "FINAL" ? "✓" : round.info.state[0].toLowerCase());
  const isFollowing = followsNewest();
  at("fates").replaceChildren(make("table", {class: "fates"},
    make("thead", {}, make("tr", {}, make("th", {}, "Round"), ...rounds.map(round => make("th", {}, String(round.info.round))))),
    make("tbody", {}, ...workers.map(member => make("tr", {}, make("th", {scope: "row"}, who(member.worker)), ...rounds.map(round => cell(member, round)))),
      make("tr", {}, make("th", {scope: "row"}, "Round settled"), ...rounds.map(state)))),
    make("div", {class: "legend"}, make("span", {}, "✓ counted"), make("span", {}, "✕ refused"), make("span", {}, "… waits for the round"), make("span", {}, "outlined: nothing sent"),
      make("span", {}, "o open, r reveal, a attest, d dispute, v void")));
  if (isFollowing) showNewest();
}

function followsNewest() {
  // The newest rounds are seen on a phone too, unless somebody has scrolled back.
  const box = at("fates");
  return box.scrollLeft === placed || box.scrollLeft + box.clientWidth >= box.scrollWidth - 2;
}

function showNewest() {
  const box = at("fates");
  if (!box.clientWidth) return;  // another tab is shown
  box.scrollLeft = box.scrollWidth;
  placed = box.scrollLeft;
}

const drawCurve = () => at("curve").replaceChildren(curve(evaluations, at("curve").clientWidth || 720));

// A tab that is shown for the first time, a window of another width: what depends on the width is done again.
const observer = new ResizeObserver(() => requestAnimationFrame(() => {
  if (followsNewest()) showNewest();
  if (evaluations.length) drawCurve();
}));
for (const id of ["fates", "curve"]) observer.observe(at(id));

function showRound(round) {
  const info = round.info, missing = info.numEligible - info.numCommitted;
  const when = info.settledHeight ? `blocks ${count(info.openedHeight)} to ${count(info.settledHeight)}` : `opened at ${count(info.openedHeight)}` + (info.dueHeight ? `, due at ${count(info.dueHeight)}` : "");
  return make("div", {class: "round"},
    make("div", {class: "head"}, make("b", {}, `Round ${info.round}`), chip(info.state), make("span", {class: "soft"}, `fragment ${info.fragment}, ${when}, ${plural(info.numVotes, "vote")}` + (info.retries ? `, retry ${info.retries}` : "")),
      isZero(info.root) ? null : make("span", {class: "faint"}, "root ", hash(info.root))),
    ...round.updates.map(showUpdate),
    missing > 0 ? make("div", {class: "faint"}, `${missing} of ${info.numEligible} eligible sent nothing` + (info.state === "OPEN" ? " yet" : "")) : null);
}

function showUpdate(update) {
  const said = update.tokens ? `${count(update.tokens)} tokens of text, training loss ${(update.lossMicro / MICRO).toFixed(3)}` : "no inner steps: a flush round";
  const fate = update.reason === "NONE" ? "" : (WHY[update.reason] || update.reason) + " · ";
  return make("div", {class: "update"}, who(update.member), chip(update.fate, WHY[update.reason]),
    make("span", {class: "soft"}, `${fate}block ${count(update.height)} · ${bytes(update.sizeBytes)} · ${said}` + (update.paid !== "0" ? ` · paid ${money(update.paid)}` : "")), make("code", {title: "blob " + update.blob}, short(update.blob)));
}

function showMembers(members) {
  at("members").replaceChildren(table(["Worker", "State", "#Accepted", "#Refused", "#Missed", "#Text read", "#Earned", "#Bond", "#Last round", "Client"], members.map(member => [
    who(member.worker), chip(member.state), count(member.accepted), count(member.refused), String(member.missed), `${count(member.tokens)} tokens`,
    money(member.earned), money(member.bond), Number(member.accepted) + Number(member.refused) ? String(member.lastRound) : "–", make("span", {class: "soft"}, member.client)]),
    "Nobody has joined yet: trainer join --chain " + location.origin + " --run N --key-file worker.key"));
}
