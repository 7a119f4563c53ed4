// @ts-check
// Elements from plain data. Texts are always text nodes: nothing that a model writes is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with attributes, listeners (`onclick`, ...), custom properties (`--name`) and children; null is left out.
 * @param {string} tag
 * @param {Record<string, any>} [given]
 * @param {...any} children
 * @returns {any}
 */
export function el(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** The same for SVG. @param {string} tag @param {Record<string, any>} [given] @param {...any} children @returns {any} */
export function svg(tag, given = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

function fill(node, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, String(value));
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  start: "M6 5v14M19 5 9 12l10 7z",
  back: "M16 5 6 12l10 7z",
  play: "M7 4l12 8-12 8z",
  pause: "M8 5v14M16 5v14",
  forward: "M8 5l10 7-10 7z",
  end: "M18 5v14M5 5l10 7-10 7z",
};

/** @param {keyof typeof ICONS} name */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** Say something to users of screen readers, once. @param {string} text */
export function announce(text) {
  const status = document.getElementById("status");
  if (status && status.textContent !== text) status.textContent = text;
}

let made = 0;

/** A new id, to tie a label to its control. */
export function uniqueId() {
  made += 1;
  return `n${made}`;
}
