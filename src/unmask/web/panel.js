// @ts-check
// One run: its policy, what it cost so far, its canvas and, for a Sudoku, its board.

import { boardView } from "./board.js";
import { el } from "./dom.js";
import { saveTrace } from "./save.js";
import { tokensView } from "./tokens.js";
import { counted } from "./words.js";

/** @param {import("./stage.js").Stage} stage @param {number} index @param {{title?: string}} [how] */
export function panel(stage, index, { title } = {}) {
  const name = el("h2", {});
  const about = el("p", { class: "about" });
  const figures = el("dl", { class: "figures" });
  const error = el("p", { class: "error", role: "alert", hidden: true });
  const tokens = tokensView(stage, index);
  const board = boardView(stage, index);
  const save = el(
    "button",
    { type: "button", class: "quiet", onclick: () => saveTrace(stage.runs[index]) },
    "Save trace",
  );
  const head = el("header", {}, el("div", {}, name, about), save);
  const node = el(
    "section",
    { class: "panel", "aria-label": title ?? `Run ${index + 1}` },
    head,
    figures,
    error,
    el("div", { class: "canvas" }, board.node, tokens.node),
  );

  const update = () => {
    const run = stage.runs[index];
    const { name: policy = "decoding", ...parameters } = run.header.policy ?? {};
    name.textContent = policy;
    about.title = about.textContent = [title, parametersOf(parameters)].filter(Boolean).join(" · ");
    save.disabled = run.passes.length === 0;
    error.hidden = run.error === null;
    error.textContent = run.error ?? "";
    figures.replaceChildren(
      ...figuresOf(run, stage.shown).map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value))),
    );
    tokens.update();
    board.update();
  };
  return { node, update };
}

function parametersOf(parameters) {
  return Object.entries(parameters)
    .filter(([, value]) => value !== null)
    .map(([key, value]) => `${key} ${value}`)
    .join(", ");
}

/** What the run cost up to the pass that is shown, and as a whole when it is over. */
function figuresOf(run, shown) {
  const passes = run.passes.length;
  const now = Math.min(shown, passes);
  const usage = run.result?.usage;
  const tokens = usage ? usage.completion_tokens : run.filled()[passes];
  const perPass = passes ? tokens / passes : 0;
  const found = [
    ["Pass", run.ended ? `${now} of ${passes}` : String(now)],
    ["Filled", `${run.filled()[now]} of ${run.holes.length}`],
    ["Text tokens", usage ? String(tokens) : "…"],
    ["Tokens per pass", run.ended ? perPass.toFixed(2) : "…"],
  ];
  if (run.seconds !== null) found.push(["Time", `${run.seconds.toFixed(run.seconds < 10 ? 2 : 1)} s`]);
  if (run.result?.finish_reason)
    found.push(["Ended by", run.result.finish_reason === "stop" ? "end of text" : "length"]);
  return found;
}

/** A run in one sentence, for screen readers. @param {import("./run.js").Run} run */
export function summary(run) {
  const name = run.header.policy?.name ?? "decoding";
  if (run.error) return `${name}: ${run.error}`;
  return `${name}: ${counted(run.filled().at(-1) ?? 0, "position")} filled in ${counted(run.passes.length, "pass", "passes")}`;
}
