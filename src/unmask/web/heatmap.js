// @ts-check
// The overlap of the open positions in the pass that is shown, as a matrix of squares.

import { el } from "./dom.js";
import { counted, number, quoted } from "./words.js";

/** @param {import("./stage.js").Stage} stage */
export function heatmap(stage) {
  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map" });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const which = el("p", { class: "hint" });
  const scale = el("p", { class: "scale", "aria-hidden": "true" }, "0", el("span", { class: "ramp" }), "1");
  const node = el(
    "section",
    { class: "card heat", "aria-label": "Overlap" },
    el("h2", {}, "Overlap of predictions"),
    which,
    canvas,
    readout,
    scale,
  );
  let line = null;
  let run = null;
  let at = null; // [row, column]
  let drawn = "";

  const point = (cell) => {
    at = cell;
    paint(canvas, line, at);
    pair(stage.runs.indexOf(run), at ? at.map((one) => line.open[one].position) : []);
    readout.textContent = at ? sentence(run, line, at) : "Point at a square, or move with the arrow keys.";
  };
  canvas.addEventListener("pointermove", (event) => line && point(cellAt(canvas, line.open.length, event)));
  canvas.addEventListener("pointerleave", () => line && point(null));
  canvas.addEventListener("click", () => at && stage.select(stage.runs.indexOf(run), line.open[at[0]].position));
  canvas.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ] ?? [0, 0];
    if (!line || (!down && !right)) return;
    const most = line.open.length - 1;
    const within = (value) => Math.max(0, Math.min(most, value));
    point(at ? [within(at[0] + down), within(at[1] + right)] : [0, Math.min(1, most)]);
    event.preventDefault();
  });
  new ResizeObserver(() => line && paint(canvas, line, at)).observe(node);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => line && paint(canvas, line, at));
  document.addEventListener("theme", () => line && paint(canvas, line, at));

  const update = () => {
    const index = stage.selected?.run ?? stage.runs.findIndex((one) => one.passes.some((pass) => pass.overlap));
    run = stage.runs[index] ?? null;
    const pass = run ? Math.min(Math.max(stage.shown, 1), run.passes.length) : 0;
    line = run?.passes[pass - 1]?.overlap ? run.passes[pass - 1] : null;
    node.hidden = !run?.passes.some((one) => one.overlap);
    canvas.hidden = readout.hidden = scale.hidden = line === null;
    which.textContent = line
      ? `Pass ${pass}, ${counted(line.open.length, "open position")} in order. The stronger a square, the more the two compete.`
      : "No matrix was recorded in this pass.";
    const key = `${index} ${pass} ${run?.passes.length}`;
    if (line && key !== drawn) point(null);
    drawn = key;
    if (line) canvas.setAttribute("aria-label", `Overlap of ${line.open.length} open positions in pass ${pass}`);
  };
  return { node, update };
}

/** Mark the two positions on the canvas of their run. */
function pair(index, positions) {
  for (const cell of document.querySelectorAll(".cell.paired")) cell.classList.remove("paired");
  for (const position of positions) document.getElementById(`cell-${index}-${position}`)?.classList.add("paired");
}

function cellAt(canvas, count, event) {
  const box = canvas.getBoundingClientRect();
  const of = (offset, size) => Math.max(0, Math.min(count - 1, Math.floor((offset / size) * count)));
  return [of(event.clientY - box.top, box.height), of(event.clientX - box.left, box.width)];
}

function sentence(run, line, [row, column]) {
  const name = (at) => {
    const { position, candidates } = line.open[at];
    const best = candidates[0];
    return `${position}${best ? ` ${quoted(run.text(best[0]))}` : ""}`;
  };
  return `${name(row)} × ${name(column)}: ${number(line.overlap[row][column])}`;
}

/** Squares of whole device pixels, so that edges stay sharp. */
function paint(canvas, line, at) {
  const count = line.open.length;
  const room = Math.min(canvas.parentElement.clientWidth - 34, 380);
  if (room <= 0) return;
  const ratio = window.devicePixelRatio || 1;
  const size = Math.max(1, Math.floor((Math.min(room, count * 28) * ratio) / count));
  canvas.width = canvas.height = size * count;
  canvas.style.setProperty("width", `${canvas.width / ratio}px`);
  canvas.style.setProperty("height", `${canvas.height / ratio}px`);
  const pen = canvas.getContext("2d");
  const style = window.getComputedStyle(canvas);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.color;
  line.overlap.forEach((values, row) =>
    values.forEach((value, column) => {
      if (!(value > 0)) return;
      pen.globalAlpha = Math.min(1, value);
      pen.fillRect(column * size, row * size, size, size);
    }),
  );
  pen.globalAlpha = 1;
  if (!at) return;
  pen.strokeStyle = style.outlineColor;
  pen.lineWidth = Math.max(1, ratio * 1.5);
  pen.strokeRect(at[1] * size, at[0] * size, size, size);
}
