// What a run's losses are counted in, which its recipe says: a token is a byte of text unless there are more than 256, or a tokenizer.
import {fromHex} from "./read.js";

const TIMEOUT_MS = 2000;
const units = new Map();

export const lossUnit = info => units.get(info.recipeDigest) || "nats";

export async function learnLossUnit(info) {
  // Once a recipe; a node that doesn't answer is asked again with the next block.
  if (units.has(info.recipeDigest)) return;
  try {
    const response = await fetch("api/read/Training/recipe?run=" + info.run, {signal: AbortSignal.timeout(TIMEOUT_MS)});
    const recipe = new TextDecoder().decode(fromHex((await response.json()).answer)), vocabulary = /^\s*vocabulary\s*=\s*([\d_]+)/m.exec(recipe);
    const isByte = (!vocabulary || Number(vocabulary[1].replaceAll("_", "")) === 256) && !/^\s*tokenizer_digest\s*=\s*["'][0-9a-f]/m.test(recipe);
    units.set(info.recipeDigest, isByte ? "nats a byte" : "nats a token");
  } catch { /* the losses stand without it */ }
}
