// @ts-check
// What the page asks the server. The key, where the server wants one, stays in the session of the tab.

import { el } from "./dom.js";
import { Run } from "./run.js";
import { eventReader } from "./sse.js";

const KEY = "unmask-key";
const HEAD = ["id", "object", "created", "choices"]; // what a chunk has and a line of a trace has not

export function savedKey() {
  return window.sessionStorage.getItem(KEY);
}

/** An error that the server told in one line. */
export class Refused extends Error {}

/**
 * The server's answer; asks for a key and tries again where the server wants one.
 * @param {string} path @param {RequestInit} [options] @returns {Promise<Response>}
 */
export async function ask(path, options = {}) {
  const key = savedKey();
  const headers = { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...options.headers };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Refused("The server cannot be reached: it may have been stopped.");
  }
  if (answer.status === 401) {
    await askForKey(key !== null);
    return ask(path, options);
  }
  if (!answer.ok) throw new Refused(await complaint(answer));
  return answer;
}

async function complaint(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error.message.replace(/^decoding\./, ""); // as the form labels its fields
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

/** @type {Promise<void> | null} */
let asking = null; // one dialog, however many requests were refused

/** Ask the user for the key of the server. @param {boolean} wrong whether one was refused */
function askForKey(wrong) {
  asking ??= new Promise((resolve, reject) => {
    const input = el("input", { type: "password", autocomplete: "off", required: true, "aria-label": "API key" });
    const text = wrong ? "The server does not know this key." : "This server wants a key.";
    const form = el(
      "form",
      { method: "dialog" },
      el("h2", {}, "API key"),
      el("p", {}, text),
      input,
      el("button", { class: "primary" }, "Continue"),
    );
    const dialog = el("dialog", { class: "sheet small", "aria-label": "API key" }, form);
    form.addEventListener("submit", () => window.sessionStorage.setItem(KEY, input.value.trim()));
    dialog.addEventListener("close", () => {
      dialog.remove();
      asking = null;
      if (input.value.trim()) resolve();
      else reject(new Refused("The server wants a key."));
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

/**
 * Send a request whose decoding events are streamed, and fill a run with them.
 * @param {string} path @param {any} body @param {AbortSignal} signal
 * @param {{onRun: (run: Run) => void, onLine: () => void}} heard
 */
export async function decode(path, body, signal, { onRun, onLine }) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const began = performance.now();
  /** @type {Run | null} */
  let run = null;
  const read = eventReader((name, data) => {
    if (data === "[DONE]") return;
    const line = JSON.parse(data);
    if (line.error) throw new Refused(line.error.message);
    if (!["header", "pass", "result"].includes(name)) return;
    for (const key of HEAD) delete line[key];
    if (name === "header") onRun((run = new Run(line)));
    else {
      delete line.model;
      run?.add(line);
      if (run) run.seconds = (performance.now() - began) / 1000;
      onLine();
    }
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) read(piece.value);
  if (run && !run.ended) throw new Refused("The stream broke off before the result.");
}
