// @ts-check
// The canvas as text: one cell for each position. Cells keep their width while they are open, so that lines stay calm.

import { el } from "./dom.js";
import { inCell, isEnd, number, quoted } from "./words.js";

const OPEN_WIDTH = 2; // letters, where the text of a position is not known yet

/** @param {import("./stage.js").Stage} stage @param {number} index */
export function tokensView(stage, index) {
  const node = el("div", {
    class: "tokens",
    role: "listbox",
    tabindex: "0",
    "aria-label": "Canvas: every position; arrow keys move, Enter selects",
  });
  let run = null;
  let cells = [];
  let active = -1;

  const build = () => {
    run = stage.runs[index];
    cells = [];
    active = -1;
    node.replaceChildren();
  };

  const move = (to) => {
    cells[active]?.node.classList.remove("active");
    active = Math.max(0, Math.min(to, cells.length - 1));
    const { node: cell } = cells[active];
    cell.classList.add("active");
    cell.scrollIntoView({ block: "nearest" });
    node.setAttribute("aria-activedescendant", cell.id);
  };

  node.addEventListener("click", (event) => {
    const cell = event.target.closest?.(".cell");
    if (!cell) return;
    move(cells.findIndex((one) => one.node === cell));
    stage.select(index, active);
  });
  node.addEventListener("keydown", (event) => {
    const to = destination(event.key, cells, active < 0 ? (run.holes[0] ?? 0) : active, active < 0);
    if (to !== null) move(to);
    else if ((event.key === "Enter" || event.key === " ") && active >= 0) stage.select(index, active);
    else if (event.key === "Escape") stage.select(index, null);
    else return;
    event.preventDefault();
  });

  const update = () => {
    if (run !== stage.runs[index]) build();
    node.style.setProperty("--n", String(Math.max(stage.last, 2)));
    const selected = stage.selected?.run === index ? stage.selected.position : null;
    run.cells(stage.shown).forEach((state, at) => {
      cells[at] ??= newCell(node, `cell-${index}-${at}`);
      draw(cells[at], state, run.finalText(at), at === selected);
    });
  };
  return { node, update };
}

/** The cell to which a key leads, or null. */
function destination(key, cells, from, first) {
  if (!key.startsWith("Arrow") && key !== "Home" && key !== "End") return null;
  if (first) return from;
  if (key === "Home") return 0;
  if (key === "End") return cells.length - 1;
  if (key === "ArrowLeft" || key === "ArrowRight") return beside(cells, from, key === "ArrowLeft" ? -1 : 1);
  const here = cells[from].node.getBoundingClientRect();
  const way = key === "ArrowDown" ? 1 : -1;
  let best = null;
  let distance = Infinity;
  let nearest = from;
  for (let at = from + way; at >= 0 && at < cells.length; at += way) {
    const there = cells[at].node.getBoundingClientRect();
    if (there.width === 0) continue;
    const lines = ((there.top - here.top) * way) / here.height;
    if (lines < 0.5) continue;
    if (best !== null && Math.abs(there.top - best) > here.height / 2) break;
    best = there.top;
    const gap = Math.abs(there.left - here.left);
    if (gap < distance) [distance, nearest] = [gap, at];
  }
  return nearest;
}

/** The next cell that can be seen on that side. */
function beside(cells, from, way) {
  let at = from + way;
  while (cells[at]?.node.hidden) at += way;
  return cells[at] ? at : from;
}

function newCell(parent, id) {
  const node = el("span", { class: "cell", role: "option", id });
  const tail = el("span", { class: "tail", "aria-hidden": "true" });
  parent.append(node, tail);
  return { node, tail, key: "", selected: false };
}

function draw(cell, state, finalText, selected) {
  const { node, tail } = cell;
  if (cell.selected !== selected || cell.key === "") {
    cell.selected = selected;
    node.setAttribute("aria-selected", String(selected));
  }
  const key = [
    state.kind,
    state.text,
    state.pass,
    state.fresh,
    state.guess,
    state.probability,
    state.reopened,
    state.left,
    finalText,
  ].join("\u0001");
  if (cell.key === key) return;
  cell.key = key;
  const text = state.kind === "open" ? state.guess : state.text;
  const end = text !== null && isEnd(text);
  node.className = [
    "cell",
    state.kind,
    state.fresh && "fresh",
    state.reopened && "reopened",
    state.left && "left",
    end && state.kind !== "prompt" && "end",
    node.classList.contains("active") && "active",
  ]
    .filter(Boolean)
    .join(" ");
  node.textContent = state.left ? "·" : text === null ? "·" : end && state.kind !== "prompt" ? "∎" : inCell(text);
  node.hidden = text === "" && state.kind === "prompt";
  node.setAttribute("aria-label", label(state));
  node.style.setProperty("--p", String(state.pass ?? 0));
  node.style.setProperty("--sure", String(state.kind === "open" ? (state.probability ?? 0) : 1));
  const shape = state.kind === "open" ? finalText : state.text;
  const width = shape === null ? OPEN_WIDTH : isEnd(shape) ? 1 : inCell(shape).length;
  node.style.setProperty("--w", `${state.left ? 1 : Math.max(1, width)}ch`);
  tail.textContent = breaks(shape);
}

/** The line breaks of a token and the spaces behind them: layout, behind its cell. */
function breaks(text) {
  if (text === null || !text.includes("\n")) return "";
  return text.trim() === "" ? text.slice(text.indexOf("\n")) : text.endsWith("\n") ? "\n" : "";
}

/** A cell for screen readers. */
function label(state) {
  const place = `position ${state.position}`;
  if (state.kind === "prompt") return `${place}, prompt: ${quoted(state.text)}`;
  if (state.kind === "done") return `${place}: ${quoted(state.text)}, pass ${state.pass}`;
  const again = state.reopened ? `, opened again in pass ${state.reopened}` : "";
  const guess = state.guess === null ? "open" : `open, perhaps ${quoted(state.guess)}, ${number(state.probability)}`;
  return `${place}: ${state.left ? "never decoded" : guess}${again}`;
}
