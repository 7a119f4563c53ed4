// @ts-check
// The playground: ask the server, watch the masks fill.

import { ask, decode, Refused, savedKey } from "./client.js";
import { announce, el } from "./dom.js";
import { askForm } from "./form.js";
import { asCurl, asPython, showSnippets } from "./save.js";
import { Stage } from "./stage.js";
import { summary } from "./panel.js";
import { theater } from "./theater.js";

/** @param {HTMLElement} main */
export async function playground(main) {
  let about;
  try {
    about = await (await ask("v1/decoding")).json();
  } catch (error) {
    main.replaceChildren(el("p", { class: "notice error", role: "alert" }, error.message));
    return;
  }
  document.getElementById("subject").textContent = about.model.name;
  const stage = new Stage();
  const form = askForm(about);
  const welcome = el(
    "p",
    { class: "welcome" },
    "A masked diffusion model fills all positions at once, in any order. Press Run and watch.",
  );
  main.className = "playground";
  const work = el("div", { class: "work" }, welcome, theater(stage).node);
  main.replaceChildren(form.node, work);
  let running = null;

  form.node.addEventListener("submit", (event) => {
    event.preventDefault();
    running?.abort();
    start();
  });
  form.stop.addEventListener("click", () => running?.abort());
  form.code.addEventListener("click", () => showSnippets(snippets(form.requests())));

  const start = async () => {
    const asked = form.requests();
    const control = (running = new AbortController());
    const runs = asked.bodies.map(() => null);
    form.complain(null);
    form.run.disabled = true;
    form.stop.hidden = false;
    announce("Decoding");
    const heard = (index) => ({
      onRun: (run) => {
        runs[index] = run;
        welcome.hidden = true;
        stage.open(runs.filter(Boolean));
        stage.live = 1;
        stage.play();
        if (narrow.matches) work.scrollIntoView();
      },
      onLine: () => (calm.matches && stage.shown >= stage.last - 1 ? stage.show(stage.last) : stage.changed()),
    });
    let failed = false;
    const fail = (error) => {
      if (control.signal.aborted) return;
      failed = true;
      form.complain(error instanceof Refused ? error.message : String(error));
    };
    await Promise.all(
      asked.bodies.map((body, index) => decode(asked.path, body, control.signal, heard(index)).catch(fail)),
    );
    if (running !== control) return;
    running = null;
    stage.live = 0;
    form.run.disabled = false;
    form.stop.hidden = true;
    const done = `Done. ${stage.runs.map(summary).join(". ")}`;
    announce(failed ? "Failed" : control.signal.aborted ? "Stopped" : done);
    stage.changed();
  };
}

const narrow = window.matchMedia("(max-width: 62rem)");
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

/** The first request as code, without what only this page needs. */
function snippets({ path, chat, bodies }) {
  const { events: _, ...decoding } = bodies[0].decoding;
  const body = { ...bodies[0], decoding };
  const url = new URL(path, document.baseURI).href;
  const base = new URL("v1", document.baseURI).href;
  const key = savedKey() !== null;
  return { curl: asCurl(url, body, key), python: asPython(base, body, chat, key) };
}
