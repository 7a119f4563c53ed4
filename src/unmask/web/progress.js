// @ts-check
// Filled positions over passes, one line for each run; a click goes to a pass.

import { lineChart } from "./chart.js";
import { el } from "./dom.js";

/** @param {import("./stage.js").Stage} stage */
export function progressView(stage) {
  const holder = el("div", { class: "plot" });
  const legend = el("p", { class: "legend" });
  const node = el(
    "section",
    { class: "card", "aria-label": "Progress" },
    el("h2", {}, "Filled positions over passes"),
    holder,
    legend,
  );
  let width = 0; // heard, not asked for: to ask would lay out the page anew
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - width) <= 1) return;
    width = contentRect.width;
    update();
  }).observe(holder);
  holder.addEventListener("click", (event) => {
    const box = holder.getBoundingClientRect();
    stage.show(Math.round(((event.clientX - box.left - 40) / Math.max(1, box.width - 54)) * stage.last));
  });

  const update = () => {
    if (!stage.runs.length || width === 0) return;
    const room = (run) => (run.ended ? Math.max(...run.filled()) : run.holes.length);
    const most = Math.max(1, ...stage.runs.map(room));
    const series = stage.runs.map((run, at) => ({
      points: run.filled().map((count, pass) => [pass, count]),
      kind: `series-${at}`,
      stepped: true,
    }));
    const label = stage.runs
      .map(
        (run) =>
          `${run.header.policy?.name}: ${run.filled().at(-1)} of ${run.holes.length} positions in ${run.passes.length} passes`,
      )
      .join("; ");
    holder.replaceChildren(
      lineChart({
        width,
        height: 170,
        series,
        x: [0, Math.max(1, stage.last)],
        y: [0, most],
        xLabel: "passes",
        marker: stage.shown,
        label,
        whole: true,
      }),
    );
    legend.hidden = stage.runs.length < 2;
    legend.replaceChildren(
      ...stage.runs.map((run, at) =>
        el("span", { class: `key series-${at}` }, run.header.policy?.name ?? `run ${at + 1}`),
      ),
    );
  };
  return { node, update };
}
