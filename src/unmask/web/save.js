// @ts-check
// Files and snippets to take away.

import { el } from "./dom.js";
import { linesOf } from "./run.js";

/** Save the run as a trace file, for `unmask view`. @param {import("./run.js").Run} run */
export function saveTrace(run) {
  const text = linesOf(run)
    .map((line) => JSON.stringify(line))
    .join("\n");
  const url = URL.createObjectURL(new Blob([`${text}\n`], { type: "application/jsonl" }));
  el("a", { href: url, download: `${run.header.policy?.name ?? "run"}.jsonl` }).click();
  window.setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** The request for a shell. @param {string} url @param {any} body @param {boolean} key whether a key is needed */
export function asCurl(url, body, key) {
  const data = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const header = key ? '  -H "Authorization: Bearer $UNMASK_API_KEY" \\\n' : "";
  return `curl -N ${url} \\\n  -H "Content-Type: application/json" \\\n${header}  -d '${data}'`;
}

/** The request for OpenAI's client in Python. @param {string} base @param {any} body @param {boolean} chat @param {boolean} key */
export function asPython(base, body, chat, key) {
  const { decoding, ...plain } = body;
  const given = [...Object.entries(plain), ...(decoding ? [["extra_body", { decoding }]] : [])];
  const fields = given.map(([name, value]) => `    ${name}=${literal(value)},`);
  const text = chat ? 'chunk.choices[0].delta.content or ""' : "chunk.choices[0].text";
  return [
    ...(key ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(base)}, api_key=${key ? 'os.environ["UNMASK_API_KEY"]' : '"none"'})`,
    `stream = client.${chat ? "chat.completions" : "completions"}.create(`,
    ...fields,
    ")",
    "for chunk in stream:",
    `    print(${text}, end="", flush=True)`,
  ].join("\n");
}

/** A JSON value as Python writes it. @param {any} value @returns {string} */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, one]) => `${JSON.stringify(key)}: ${literal(one)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

/** A dialog with the request in both forms. @param {{curl: string, python: string}} snippets */
export function showSnippets(snippets) {
  const block = (title, text) => {
    const copy = el("button", { type: "button", class: "quiet" }, "Copy");
    const pre = el("pre", { tabindex: "0", "aria-label": title }, text);
    copy.addEventListener("click", () => copyText(text, pre, copy));
    return el("section", {}, el("header", {}, el("h3", {}, title), copy), pre);
  };
  const close = el("button", { type: "button" }, "Close");
  const dialog = el(
    "dialog",
    { class: "sheet", "aria-label": "The request as code" },
    block("curl", snippets.curl),
    block("Python, with OpenAI's client", snippets.python),
    close,
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Copy the text; where the browser does not let a page copy, select it. */
async function copyText(text, pre, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    window.getSelection()?.selectAllChildren(pre);
    button.textContent = "Selected: press Ctrl+C";
  }
}
