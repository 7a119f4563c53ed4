// @ts-check
// The viewer: traces that were recorded, one row or two side by side.

import { el, uniqueId } from "./dom.js";
import { runsOf } from "./run.js";
import { Stage } from "./stage.js";
import { theater } from "./theater.js";

/** @param {HTMLElement} main @param {{name: string, lines: any[]}[]} traces */
export function viewer(main, traces) {
  try {
    show(main, traces);
  } catch (error) {
    main.replaceChildren(el("p", { class: "notice error", role: "alert" }, `This trace cannot be shown: ${error}`));
  }
}

function show(main, traces) {
  const entries = traces.flatMap(({ name, lines }) => {
    const runs = runsOf(lines);
    return runs.map((run, row) => ({ run, title: runs.length > 1 ? `${name}, row ${row}` : name }));
  });
  const stage = new Stage();
  const options = entries.map(({ title }, at) => el("option", { value: String(at) }, title));
  const first = picker("Show", options);
  const second = picker("Beside", [
    el("option", { value: "" }, "nothing"),
    ...options.map((option) => option.cloneNode(true)),
  ]);
  if (traces.length > 1)
    second.select.value = String(entries.findIndex(({ run }) => run.header === traces[1].lines[0]));
  const chosen = () => [first.select.value, second.select.value].filter((value) => value !== "").map(Number);
  const bar = el("div", { class: "pickers", hidden: entries.length < 2 }, first.node, second.node);
  const subject = new Set(traces.map(({ lines }) => lines[0].model ?? ""));
  document.getElementById("subject").textContent = [...subject].join(", ");
  main.className = "viewer";
  main.replaceChildren(
    bar,
    theater(stage, { titles: () => (entries.length > 1 ? chosen().map((at) => entries[at].title) : []) }).node,
  );

  const open = () =>
    stage.open(
      chosen().map((at) => entries[at].run),
      { at: Infinity },
    );
  first.select.addEventListener("change", open);
  second.select.addEventListener("change", open);
  open();
  if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) {
    stage.shown = 0;
    stage.play();
  }
}

function picker(label, options) {
  const id = uniqueId();
  const select = el("select", { id }, options);
  return { select, node: el("div", { class: "field" }, el("label", { for: id }, label), select) };
}
