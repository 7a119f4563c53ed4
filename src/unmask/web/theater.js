// @ts-check
// Everything around the runs of a stage: panels, transport, legend, chart, inspector, heat map.

import { el } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { inspector } from "./inspector.js";
import { panel } from "./panel.js";
import { progressView } from "./progress.js";
import { listenToKeys, transport } from "./transport.js";

/** @param {import("./stage.js").Stage} stage @param {{titles?: () => string[]}} [how] */
export function theater(stage, { titles = () => [] } = {}) {
  const panels = el("div", { class: "panels" });
  const passes = transport(stage);
  const progress = progressView(stage);
  const parts = [inspector(stage), heatmap(stage)];
  const details = el(
    "div",
    { class: "details" },
    parts.map((part) => part.node),
  );
  const node = el("div", { class: "theater", hidden: true }, passes.node, legend(), panels, progress.node, details);
  let views = [];
  let named = "";
  listenToKeys(stage);

  stage.listen(() => {
    node.hidden = stage.runs.length === 0;
    if (node.hidden) return;
    node.dataset.runs = String(stage.runs.length);
    if (views.length !== stage.runs.length || titles().join() !== named) {
      views = stage.runs.map((_, index) => panel(stage, index, { title: titles()[index] }));
      named = titles().join();
      panels.replaceChildren(...views.map((view) => view.node));
    }
    for (const view of [passes, ...views, progress, ...parts]) view.update();
  });
  return { node };
}

function legend() {
  const sample = (kind, text) => el("span", {}, el("span", { class: `sample ${kind}`, "aria-hidden": "true" }), text);
  return el(
    "p",
    { class: "legend marks" },
    el("span", {}, "first pass", el("span", { class: "ramp passes", "aria-hidden": "true" }), "last pass"),
    sample("fresh", "committed in this pass"),
    sample("open", "best guess; the line is its probability"),
    sample("reopened", "opened again"),
  );
}
