// @ts-check
// Why a position was committed in a pass, or was not: only what the recorded numbers show.

import { number, ordinal, quoted } from "./words.js";

// The number that a policy compares with its parameter `threshold`.
const COMPARED = { mean_field: "intensity", threshold: "score" };
const NAMES = { mean_field: "intensity", threshold: "probability" };

/**
 * What a policy compares with which threshold; null where that is not known.
 * @param {any} policy
 */
export function comparison(policy) {
  const key = COMPARED[policy?.name];
  if (!key || typeof policy.threshold !== "number") return null;
  return { key, name: NAMES[policy.name], threshold: policy.threshold };
}

/** Sentences about the position in that pass. @param {import("./run.js").Run} run @param {number} position @param {number} pass */
export function explain(run, position, pass) {
  const line = run.passes[pass - 1];
  if (!line) return ["Nothing has been decided yet: this is the canvas before the first pass."];
  const seen = run.seen(position, pass);
  if (!seen) return [absent(run, line, position)];
  const said = [verdict(run, seen, pass), ...threshold(run, seen), ...rank(seen), ...rivals(run, seen)];
  return said.filter(Boolean);
}

function absent(run, line, position) {
  const commit = line.committed.find((one) => one.position === position);
  if (commit) return "Committed in this pass. The trace has no numbers about open positions.";
  if (line.remasked.includes(position)) return "Opened again in this pass: the policy took its token back.";
  const [start, end] = line.block;
  if (position < start || position >= end) return `Not in the block of this pass, positions ${start} to ${end - 1}.`;
  return (line.open ?? []).length ? "Not open in this pass." : "The trace has no numbers about open positions.";
}

function verdict(run, { commit }, pass) {
  return commit ? `Committed in pass ${pass}: ${quoted(run.text(commit.token_id))}.` : `Left open in pass ${pass}.`;
}

function threshold(run, { line, open, commit }) {
  const compared = comparison(run.header.policy);
  const value = compared && open[compared.key];
  if (!compared || typeof value !== "number") return [];
  const reaches = value >= compared.threshold;
  const is = `Its ${compared.name} ${number(value)} ${reaches ? "reaches" : "is below"} the threshold ${compared.threshold}.`;
  if (reaches === Boolean(commit)) return [is];
  const any = line.open.some((one) => one[compared.key] >= compared.threshold);
  if (commit && !any && line.committed.length === 1)
    return [is, "No position reached it, so the best-scored one was committed."];
  return [is];
}

/** The rank by score, and whether the pass committed exactly the best-scored positions. */
function rank({ line, open, commit }) {
  if (typeof open.score !== "number") return [];
  const scored = line.open.filter((one) => typeof one.score === "number");
  const place = 1 + scored.filter((one) => one.score > open.score).length;
  const done = new Set(line.committed.map((one) => one.position));
  const worst = Math.min(...scored.filter((one) => done.has(one.position)).map((one) => one.score));
  const best = scored.every((one) => done.has(one.position) || one.score <= worst);
  const order = `${ordinal(place)} of ${scored.length} by score`;
  if (best && done.size > 0 && scored.length > 1)
    return [
      `${order}; the pass committed the ${done.size === 1 ? "best" : `${done.size} best`}${commit ? "" : ", without this one"}.`,
    ];
  return [`${order}; the pass committed ${done.size}.`];
}

/** The positions that it overlaps with most, where the matrix was recorded. */
function rivals(run, { line, open }) {
  const at = line.open.indexOf(open);
  const row = line.overlap?.[at];
  if (!row) return [];
  const found = row
    .map((value, other) => ({ value, position: line.open[other].position }))
    .filter(({ value }, other) => other !== at && value >= 0.01)
    .sort((a, b) => b.value - a.value)
    .slice(0, 3);
  return found.length
    ? [
        `Overlaps most with ${found.map(({ value, position }) => `position ${position} (${number(value)})`).join(", ")}.`,
      ]
    : [];
}
