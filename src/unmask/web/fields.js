// @ts-check
// Form fields out of the server's own description of parameters. A field that is left alone is not sent.

import { el, uniqueId } from "./dom.js";

/**
 * A labelled control for one parameter: {name, type, default, help?, choices?, least?, within?, optional?}.
 * `value()` is undefined where the default holds; it throws a line about what cannot be read.
 * @param {any} about @param {any} [standard] the value that holds if the field is left alone
 */
export function field(about, standard = about.default) {
  const id = uniqueId();
  const control = controlOf(about, standard, id);
  const help = about.help ? el("small", { id: `${id}-help` }, about.help) : null;
  if (help) control.setAttribute("aria-describedby", `${id}-help`);
  const label = el("label", { for: id, title: about.help }, about.name);
  const node = el(
    "div",
    { class: `field ${about.type}` },
    about.type === "boolean" ? [control, label] : [label, control],
    help,
  );
  return { name: about.name, node, control, value: () => read(about, control, standard) };
}

function controlOf(about, standard, id) {
  if (about.type === "boolean") return el("input", { type: "checkbox", id, checked: standard === true });
  if (about.choices) {
    const words = about.optional && standard === null ? ["", ...about.choices] : about.choices;
    const select = el(
      "select",
      { id },
      words.map((word) => el("option", { value: word }, word === "" ? "default" : word)),
    );
    select.value = standard ?? "";
    return select;
  }
  if (about.type === "texts") return el("textarea", { id, rows: "2", placeholder: "one a line" });
  const numeric = about.type === "number" || about.type === "integer";
  const bounds = boundsOf(about);
  return el("input", {
    id,
    type: "text",
    inputmode: numeric ? "decimal" : "text",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: placeholder(about, standard),
    title: bounds,
  });
}

function boundsOf(about) {
  if (about.within) return `a number in ${about.within}`;
  return about.least === undefined ? null : `a whole number of at least ${about.least}`;
}

function placeholder(about, standard) {
  if (Array.isArray(standard)) return standard.join(", ") || "none";
  if (standard === null || standard === undefined) return about.help ? "default" : "none";
  return String(standard);
}

function read(about, control, standard) {
  if (about.type === "boolean") return control.checked === (standard === true) ? undefined : control.checked;
  const text = control.value;
  if (about.choices) return text === (standard ?? "") ? undefined : text;
  if (about.type === "texts") return text === "" ? undefined : text.split("\n").filter((line) => line !== "");
  if (text.trim() === "") return undefined;
  if (about.type === "integers")
    return text
      .split(/[\s,]+/)
      .filter(Boolean)
      .map((one) => numberOf(about, one));
  return about.type === "text" ? text.trim() : numberOf(about, text.trim());
}

/** The number that was typed; what is none goes to the server as it is, whose message says what is wrong. */
function numberOf(about, text) {
  if (about.optional && text.toLowerCase() === "none") return null;
  const value = Number(text);
  return Number.isFinite(value) ? value : text;
}
