// @ts-check
// Play, pause, step and the slider over passes; also by keyboard from anywhere on the page.

import { announce, el, icon } from "./dom.js";
import { SPEEDS } from "./stage.js";

/** @param {import("./stage.js").Stage} stage */
export function transport(stage) {
  const button = (name, label, act) =>
    el("button", { type: "button", "aria-label": label, title: label, onclick: act }, icon(name));
  const toggle = button("play", "Play", () => (stage.playing ? stage.pause() : stage.play()));
  const slider = el("input", {
    type: "range",
    min: "0",
    max: "0",
    value: "0",
    class: "passes",
    "aria-label": "Pass",
    oninput: () => stage.show(Number(slider.value)),
  });
  const speed = el(
    "select",
    { "aria-label": "Speed", onchange: () => (stage.speed = Number(speed.value)) },
    SPEEDS.map((value) => el("option", { value: String(value) }, `${value}/s`)),
  );
  const count = el("output", { class: "count" });
  speed.value = String(stage.speed);
  const steps = [
    button("start", "To the start", () => stage.show(0)),
    button("back", "One pass back", () => stage.show(stage.shown - 1)),
    toggle,
    button("forward", "One pass forward", () => stage.show(stage.shown + 1)),
    button("end", "To the end", () => stage.show(stage.last)),
  ];
  const node = el(
    "div",
    { class: "transport", role: "group", "aria-label": "Passes" },
    el("div", { class: "buttons" }, steps),
    slider,
    count,
    speed,
  );

  let told = 0; // the pass that was announced last, or went by
  let timer = 0;
  const update = () => {
    slider.max = String(stage.last);
    slider.value = String(stage.shown);
    slider.setAttribute("aria-valuetext", `pass ${stage.shown} of ${stage.last}`);
    count.textContent = `pass ${stage.shown} of ${stage.last}${stage.live ? "…" : ""}`;
    if (toggle.getAttribute("aria-label") !== (stage.playing ? "Pause" : "Play")) {
      toggle.setAttribute("aria-label", stage.playing ? "Pause" : "Play");
      toggle.title = stage.playing ? "Pause" : "Play";
      toggle.replaceChildren(icon(stage.playing ? "pause" : "play"));
    }
    if (stage.playing || stage.live) told = stage.shown;
    if (told === stage.shown) return;
    told = stage.shown;
    window.clearTimeout(timer);
    timer = window.setTimeout(() => announce(`Pass ${stage.shown} of ${stage.last}`), 500);
  };
  return { node, update };
}

/** Keys for the passes, wherever the focus is, except where keys mean something else. @param {import("./stage.js").Stage} stage */
export function listenToKeys(stage) {
  const moves = { ",": () => stage.show(stage.shown - 1), ".": () => stage.show(stage.shown + 1) };
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("textarea, select, input, dialog")) return;
    if (event.key === "k") stage.playing ? stage.pause() : stage.play();
    else if (event.key in moves) moves[event.key]();
    else return;
    event.preventDefault();
  });
}
