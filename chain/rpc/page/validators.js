// Validators with their power, bond and jail; governance; the parameters in force.
import {at, chip, count, hash, list, make, money, plural, table, tokens, who, words} from "./dom.js";

export function showStaking(staking, chain) {
  const validators = staking.validators, power = validators.reduce((sum, each) => sum + Number(each.power), 0);
  at("bonded").textContent = `${plural(validators.length, "validator")}, ${money(staking.totalBonded)} bonded; blocks need more than two thirds of the power`;
  const state = each => {
    if (Number(each.jailedUntil) > chain.height) return chip("JAILED", `until block ${each.jailedUntil}`);
    if (Number(each.jailedUntil)) return chip("FREE", "the time is over: unjail puts it back into the set");
    return chip(Number(each.power) ? "ACTIVE" : "OUT", Number(each.power) ? null : "its bond is too small for the set");
  };
  // A block names the operator of its proposer, and the key's own address while that has named none.
  const proposed = each => chain.blocks.filter(block => block.proposer === each.operator || block.proposer === each.consensusAddress).length;
  at("validatorList").replaceChildren(table(["Operator", "State", "#Power", "#Share", "#Bond", "#Slashed", "#Proposed lately", "Jailed until", "Consensus address", "Key"], validators.map(each => [
    who(each.operator), state(each), count(each.power), power ? (100 * Number(each.power) / power).toFixed(1) + " %" : "–", money(each.bond), each.slashed === "0" ? "–" : money(each.slashed),
    `${proposed(each)} of ${plural(chain.blocks.length, "block")}`, Number(each.jailedUntil) ? count(each.jailedUntil) : "–", hash(each.consensusAddress), hash(each.key)]), "No validators."));
  const bonds = BigInt(staking.totalBonded), share = voters => bonds ? Number(validators.reduce((sum, each) => voters.includes(each.operator) ? sum + BigInt(each.bond) : sum, 0n) * 1000n / bonds) / 10 : 0;
  const unit = (name, value) => /Wei$/.test(name) ? money(value) : /Ppm$/.test(name) ? `${Number(value) / 1e4} %` : /Blocks$/.test(name) ? plural(value, "block") : count(value);
  at("proposals").replaceChildren(table(["#Id", "State", "Parameter", "#New value", "#From block", "#In favour", "Proposer"], staking.proposals.map(each => [
    String(each.proposal), chip(each.state), words(each.name), unit(each.name, each.value), count(each.activationHeight), `${plural(each.voters.length, "vote")}, ${share(each.voters)} % of the bonds`, who(each.proposer)]),
    "Nothing has been proposed. A validator's operator may: Staking.propose(name, value, activationHeight)."));
  list(at("parameters"), [...Object.entries(staking.params).map(([name, value]) => [words(name.replace(/Wei$|Ppm$/, "")), unit(name, value)]), ["Base fee", `${tokens(chain.baseFee)} a gas`], ["Gas limit", count(chain.gasLimit)]]);
}
