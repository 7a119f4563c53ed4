// @ts-check
// The HTTP interface, drawn from the server's own OpenAPI document. Texts are always text nodes.

import { el } from "./dom.js";
import { themeButton } from "./theme.js";

themeButton(document.getElementById("theme"));
const main = document.getElementById("main");
const DEEPEST = 4; // objects within objects

/** The schema that a reference stands for. */
function resolved(spec, schema) {
  const name = schema?.$ref?.split("/").pop();
  return name === undefined ? (schema ?? {}) : spec.components.schemas[name];
}

/** The forms that a value may have, without null. */
function forms(spec, schema) {
  const found = resolved(spec, schema);
  const several = found.anyOf ?? found.oneOf;
  return several ? several.flatMap((one) => forms(spec, one)) : found.type === "null" ? [] : [found];
}

function inWords(spec, schema) {
  const words = forms(spec, schema).map((form) => {
    if (form.const !== undefined) return JSON.stringify(form.const);
    if (form.enum) return form.enum.map((value) => JSON.stringify(value)).join(" or ");
    if (form.type === "array") return `list of (${inWords(spec, form.items ?? {})})`;
    const bounds = [form.minimum, form.maximum];
    const range = bounds.some((bound) => bound !== undefined) ? ` ${bounds[0] ?? ""} to ${bounds[1] ?? "any"}` : "";
    return (form.title && form.properties ? form.title : (form.type ?? "anything")) + range;
  });
  return [...new Set(words)].join(" | ").replace(/\((\w+)\)/g, "$1");
}

/** The objects that have fields of their own among the forms of a value, also as elements of a list. */
function objects(spec, schema) {
  return forms(spec, schema).flatMap((form) => {
    if (form.type === "array") return objects(spec, form.items ?? {});
    return form.properties ? [form] : [];
  });
}

/** `asked`: whether a client writes these fields, and so must know which of them are required. */
function fields(spec, schema, asked, depth = 0) {
  const required = new Set(asked ? schema.required : []);
  const named = Object.entries(schema.properties ?? {});
  const sorted = [...named.filter(([name]) => required.has(name)), ...named.filter(([name]) => !required.has(name))];
  const rows = sorted.map(([name, field]) => {
    const inner = depth < DEEPEST ? objects(spec, field) : [];
    const about = field.description ?? inner.map((form) => form.description).find((text) => text) ?? "";
    return [
      el(
        "dt",
        {},
        el("code", {}, name),
        el("span", { class: "type" }, inWords(spec, field)),
        required.has(name) ? el("span", { class: "must" }, "required") : null,
      ),
      el(
        "dd",
        {},
        about,
        inner.map((form) =>
          el("details", {}, el("summary", {}, `fields of ${form.title ?? name}`), fields(spec, form, asked, depth + 1)),
        ),
      ),
    ];
  });
  return el("dl", {}, rows);
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function command(spec, path, method, example) {
  const parts = ["curl", "-s"];
  if (method !== "get") parts.push("-X", method.toUpperCase());
  const url = new URL(path.replace(/^\//, ""), document.baseURI).href;
  const lines = [[...parts, quoted(url)].join(" ")];
  if (spec.security) lines.push('-H "Authorization: Bearer $UNMASK_API_KEY"');
  if (example) lines.push('-H "Content-Type: application/json"', `-d ${quoted(JSON.stringify(example))}`);
  return lines.join(" \\\n  ");
}

function operation(spec, path, method, about) {
  const body = resolved(spec, about.requestBody?.content?.["application/json"]?.schema);
  const answer = resolved(spec, about.responses["200"]?.content?.["application/json"]?.schema);
  const statuses = Object.keys(about.responses).filter((status) => status !== "200");
  return el(
    "section",
    { id: name(path, method) },
    el("h2", {}, el("span", { class: "method" }, method.toUpperCase()), path),
    el("p", {}, about.description ?? about.summary ?? ""),
    el("pre", {}, command(spec, path, method, body.examples?.[0])),
    body.properties ? [el("h3", {}, "Body"), fields(spec, body, true)] : null,
    answer.properties ? [el("h3", {}, "Answer"), fields(spec, answer, false)] : null,
    statuses.length > 0
      ? [el("h3", {}, "Errors"), el("p", {}, statuses.join(", "), ": ", el("code", {}, '{"error": {...}}'))]
      : null,
  );
}

function name(path, method) {
  return `${method}${path.replace(/[^a-z0-9]+/gi, "-")}`;
}

function draw(spec) {
  const all = Object.entries(spec.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => ({ path, method, about })),
  );
  const links = all.map(({ path, method }) =>
    el("li", {}, el("a", { href: `#${name(path, method)}` }, `${method.toUpperCase()} ${path}`)),
  );
  const source = el("a", { href: "openapi.json" }, "openapi.json");
  main.replaceChildren(
    el("h1", {}, "HTTP interface"),
    el("p", { class: "soft" }, `${spec.info.title} ${spec.info.version}. Drawn from `, source, "."),
    el("nav", { "aria-label": "Routes" }, el("ul", {}, links)),
    ...all.map(({ path, method, about }) => operation(spec, path, method, about)),
  );
  // The browser looked for the place that the address names before it was there.
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

try {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  draw(await answer.json());
} catch (error) {
  main.replaceChildren(el("p", { role: "alert" }, `The description could not be read: ${error.message}`));
}
