// @ts-check
// What to decode and how: the prompt, one policy or two, settings. Everything is built from GET /v1/decoding.

import { el, uniqueId } from "./dom.js";
import { field } from "./fields.js";

const FIRST = ["max_tokens", "block_size", "temperature", "cache"]; // settings that are shown at once
const CHOSEN = "threshold"; // to compare with at first, or any other policy

/** @param {any} about what the server says of itself */
export function askForm(about) {
  const { examples, model, settings, defaults } = about;
  const promptId = uniqueId();
  const prompt = el("textarea", { id: promptId, rows: "5", spellcheck: "false" });
  const chat = choice(
    "mode",
    [
      ["completion", "Completion"],
      ["chat", "Chat"],
    ],
    !model.chat,
  );
  const fields = settings.map((one) => field(one, defaults.settings[one.name] ?? null));
  const setting = new Map(fields.map((one) => [one.name, one]));
  const examplesNode = el(
    "div",
    { class: "chips", role: "group", "aria-label": "Examples" },
    examples.map((example) =>
      el("button", { type: "button", class: "chip", onclick: () => use(example) }, example.title),
    ),
  );

  const use = (example) => {
    prompt.value = example.prompt;
    for (const [name, value] of Object.entries(example.settings)) setting.get(name).control.value = String(value);
  };

  const first = policyPart(about, "Policy", defaults.policy.name);
  const other =
    about.policies.find((one) => one.name === CHOSEN && one.name !== defaults.policy.name) ??
    about.policies.find((one) => one.name !== defaults.policy.name) ??
    about.policies[0];
  const second = policyPart(about, "Second policy", other.name);
  const compare = el("input", {
    type: "checkbox",
    id: uniqueId(),
    onchange: () => (second.node.hidden = !compare.checked),
  });
  second.node.hidden = true;
  const detail = [
    field({ name: "candidates", type: "integer", default: 5, help: "Likeliest tokens of every open position." }),
    field({ name: "overlap", type: "boolean", default: true, help: "Record the matrices of policies that have one." }),
  ];
  const run = el("button", { class: "primary", type: "submit" }, "Run");
  const stop = el("button", { type: "button", hidden: true }, "Stop");
  const code = el("button", { type: "button", class: "quiet" }, "As code…");
  const error = el("p", { class: "error", role: "alert", hidden: true });
  const shown = fields.filter((one) => FIRST.includes(one.name));
  const rest = fields.filter((one) => !FIRST.includes(one.name));
  const node = el(
    "form",
    { class: "ask", "aria-label": "Request" },
    el("div", { class: "field" }, el("label", { for: promptId }, "Prompt"), prompt, examplesNode),
    chat.node,
    el("div", { class: "actions" }, run, stop, code),
    error,
    first.node,
    el("div", { class: "field boolean" }, compare, el("label", { for: compare.id }, "Compare with a second policy")),
    second.node,
    el(
      "fieldset",
      {},
      el("legend", {}, "Settings"),
      el(
        "div",
        { class: "pair" },
        shown.map((one) => one.node),
      ),
    ),
    el(
      "details",
      {},
      el("summary", {}, "More settings"),
      rest.map((one) => one.node),
    ),
    el(
      "details",
      {},
      el("summary", {}, "What is recorded"),
      detail.map((one) => one.node),
    ),
  );
  if (examples.length) use(examples[0]);

  /** The bodies of one request or two. */
  const requests = () => {
    const chatting = chat.value() === "chat";
    const input = chatting ? { messages: [{ role: "user", content: prompt.value }] } : { prompt: prompt.value };
    const recorded = Object.fromEntries(
      detail.map((one) => [one.name, one.value() ?? { candidates: 5, overlap: true }[one.name]]),
    );
    const body = (part) => ({
      model: model.name,
      ...input,
      stream: true,
      decoding: { ...part.value(), ...valuesOf(fields), events: recorded },
    });
    const parts = compare.checked ? [first, second] : [first];
    return { path: chatting ? "v1/chat/completions" : "v1/completions", chat: chatting, bodies: parts.map(body) };
  };
  const complain = (text) => {
    error.hidden = !text;
    error.textContent = text ?? "";
  };
  return { node, requests, run, stop, code, complain };
}

/** What was changed, by name. */
function valuesOf(fields) {
  return Object.fromEntries(fields.map((one) => [one.name, one.value()]).filter(([, value]) => value !== undefined));
}

/** Radio buttons under one name. */
function choice(name, options, hidden) {
  const inputs = options.map(([value]) => el("input", { type: "radio", name, value, id: uniqueId() }));
  inputs[0].checked = true;
  const node = el(
    "div",
    { class: "segments", role: "radiogroup", "aria-label": "Kind of request", hidden },
    options.map(([, label], at) => [inputs[at], el("label", { for: inputs[at].id }, label)]),
  );
  return { node, value: () => inputs.find((one) => one.checked).value };
}

/** A policy and its parameters; `chosen` is the name to begin with. */
function policyPart(about, title, chosen) {
  const id = uniqueId();
  const select = el(
    "select",
    { id },
    about.policies.map((one) => el("option", { value: one.name }, one.name)),
  );
  const sentence = el("small", {});
  const holder = el("div", { class: "pair" });
  let fields = [];
  const isDefault = () => select.value === about.defaults.policy.name;
  const build = () => {
    const policy = about.policies.find((one) => one.name === select.value);
    const standard = isDefault() ? about.defaults.policy : policy.preset;
    const words = policy.about.split("`"); // every second one is a name
    sentence.replaceChildren(...words.map((word, at) => (at % 2 ? el("code", {}, word) : word)));
    fields = policy.parameters.map((one) => field(one, standard[one.name] ?? one.default));
    holder.replaceChildren(...fields.map((one) => one.node));
  };
  select.addEventListener("change", build);
  select.value = chosen;
  build();
  const node = el(
    "fieldset",
    {},
    el("legend", {}, title),
    el("div", { class: "field" }, el("label", { for: id, class: "unseen" }, title), select, sentence),
    holder,
  );
  // A name stands for the preset of the model's family; without one, the server's own policy is meant.
  return { node, value: () => ({ ...(isDefault() ? {} : { policy: select.value }), ...valuesOf(fields) }) };
}
