// @ts-check
// The selected position in the pass that is shown: candidates, numbers, their course over the passes, and why.

import { lineChart } from "./chart.js";
import { el } from "./dom.js";
import { comparison, explain } from "./explain.js";
import { number, quoted } from "./words.js";

/** @param {import("./stage.js").Stage} stage */
export function inspector(stage) {
  const body = el("div", { class: "inspected" });
  const title = el("h2", {});
  const node = el("section", { class: "card", "aria-label": "Position" }, title, body);

  let width = 320; // heard, not asked for: to ask would lay out the page anew
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - width) <= 1) return;
    width = contentRect.width;
    update();
  }).observe(title);

  const update = () => {
    const chosen = stage.selected;
    const run = chosen && stage.runs[chosen.run];
    if (!run) {
      title.textContent = "Position";
      body.replaceChildren(
        el("p", { class: "hint" }, "Select a position of the canvas to see what the model thought of it."),
      );
      return;
    }
    const { position } = chosen;
    const whose = stage.runs.length > 1 ? `, ${run.header.policy?.name}` : "";
    title.textContent = `Position ${position}${whose}`;
    if (!run.holes.includes(position)) {
      const text = run.text(run.prompt.token_ids[position]);
      body.replaceChildren(
        el("p", {}, "Part of the prompt: ", el("code", {}, quoted(text)), `, token ${run.prompt.token_ids[position]}.`),
      );
      return;
    }
    const pass = passOf(run, position, stage.shown);
    const seen = run.seen(position, pass);
    const why = el(
      "ul",
      { class: "why" },
      explain(run, position, pass).map((sentence) => el("li", {}, sentence)),
    );
    body.replaceChildren(
      ...[why, seen && candidates(run, seen), seen && numbers(seen), course(run, position, stage.shown, width)].filter(
        Boolean,
      ),
    );
  };
  return { node, update };
}

/** The pass to tell of: the one that is shown, or the earlier one that committed what stands there. */
function passOf(run, position, shown) {
  const cell = run.cell(position, shown, new Set(run.holes));
  return cell.kind === "done" ? cell.pass : Math.min(shown, run.passes.length);
}

function candidates(run, { open, commit }) {
  const rows = open.candidates.map(([id, probability], at) => {
    const text = open.texts?.[at] ?? run.text(id);
    const chosen = commit?.token_id === id;
    return el(
      "li",
      { class: chosen ? "chosen" : null },
      el("code", {}, quoted(text)),
      el("span", { class: "bar", "--share": probability ?? 0, "aria-hidden": "true" }),
      el("span", { class: "share" }, number(probability)),
      chosen ? el("span", { class: "unseen" }, " committed") : null,
    );
  });
  return el("ol", { class: "candidates", "aria-label": "Candidates" }, rows);
}

function numbers({ open, commit }) {
  const margin = open.margin ?? commit?.margin;
  const pairs = [
    ["score", open.score],
    ["margin", margin],
    ["intensity", open.intensity ?? commit?.intensity],
  ];
  const known = pairs.filter(([, value]) => value !== null && value !== undefined);
  return el(
    "dl",
    { class: "numbers" },
    known.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, number(value)))),
  );
}

/** The numbers of the position over all passes in which it was open. */
function course(run, position, shown, width) {
  const seen = run.history.get(position)?.seen ?? [];
  if (seen.length < 2) return null;
  const points = (pick) =>
    seen.map(({ pass, open }) => [pass, pick(open)]).filter(([, value]) => typeof value === "number");
  const all = [
    { name: "best probability", kind: "probability", points: points((open) => open.candidates[0]?.[1]) },
    { name: "intensity", kind: "intensity", points: points((open) => open.intensity) },
    { name: "score", kind: "score", points: points((open) => open.score) },
  ].filter((one) => one.points.length);
  const shares = all.filter((one) => one.points.every(([, value]) => value >= 0 && value <= 1) && !doubled(one, all));
  const others = all.filter((one) => !shares.includes(one) && !doubled(one, all));
  const compared = comparison(run.header.policy);
  const level = compared?.threshold;
  const x = /** @type {[number, number]} */ ([seen[0].pass, seen.at(-1).pass]);
  return el(
    "div",
    { class: "course" },
    [
      plot(shares, x, [0, 1], shown, width, level),
      ...others.map((one) => plot([one], x, rangeOf(one), shown, width)),
    ].filter(Boolean),
  );
}

/** Whether a line lies on one that is drawn before it: some policies score by probability or intensity. */
function doubled(one, all) {
  const same = (a, b) =>
    a.points.length === b.points.length && a.points.every(([, value], at) => Math.abs(value - b.points[at][1]) < 1e-6);
  return all.slice(0, all.indexOf(one)).some((other) => same(other, one));
}

function rangeOf({ points }) {
  const values = points.map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? [low - 1, high + 1] : [low, high];
}

function plot(series, x, y, marker, width, level) {
  if (!series.length) return null;
  const label = series
    .map((one) => `${one.name} from ${number(one.points[0][1])} to ${number(one.points.at(-1)[1])}`)
    .join("; ");
  const shown = Math.max(x[0], Math.min(marker, x[1]));
  const chart = lineChart({
    width,
    height: 130,
    series,
    x,
    y,
    xLabel: "pass",
    marker: shown,
    level,
    label: `Over passes ${x[0]} to ${x[1]}: ${label}`,
  });
  return el(
    "figure",
    {},
    el(
      "figcaption",
      { class: "legend" },
      series.map((one) => el("span", { class: `key ${one.kind}` }, one.name)),
      level === undefined ? null : el("span", { class: "key level" }, `threshold ${level}`),
    ),
    chart,
  );
}
