// @ts-check
// One row of a trace, or one live answer: its lines as they come, and the state of its canvas after any pass.
// Passes are counted from 1 here; pass 0 is the canvas before the first one.

/** The last entry at or before that pass. */
function latest(entries, shown) {
  for (let at = entries.length - 1; at >= 0; at -= 1) if (entries[at].pass <= shown) return entries[at];
  return null;
}

export class Run {
  /** @param {any} header @param {number} [row] */
  constructor(header, row = 0) {
    this.header = header;
    this.row = row;
    this.prompt = header.prompts?.[row] ?? { text: "", token_ids: [] };
    this.passes = [];
    this.result = null;
    this.seconds = null; // of a live answer
    this.history = new Map(); // position -> {commits, reopened, seen}
    this.texts = new Map(); // token id -> text
    (this.prompt.tokens ?? []).forEach((text, at) => this.#name(this.prompt.token_ids[at], text));
    this.known = null; // positions of `holes`, where the header does not say
  }

  /** Take in a line of the row: a pass or the result. @param {any} line */
  add(line) {
    if (!("step" in line)) {
      this.result = line;
      return;
    }
    this.passes.push(line);
    this.known = null;
    const pass = this.passes.length;
    for (const open of line.open ?? []) {
      this.#of(open.position).seen.push({ pass, open });
      open.texts?.forEach((text, at) => this.#name(open.candidates[at][0], text));
    }
    for (const commit of line.committed) {
      this.#of(commit.position).commits.push({ pass, commit });
      this.#name(commit.token_id, commit.text);
    }
    for (const position of line.remasked) this.#of(position).reopened.push({ pass });
  }

  #name(id, text) {
    if (typeof text === "string") this.texts.set(id, text);
  }

  #of(position) {
    const found = this.history.get(position) ?? { commits: [], reopened: [], seen: [] };
    this.history.set(position, found);
    return found;
  }

  get ended() {
    return this.result !== null;
  }

  get error() {
    return this.result?.error ?? null;
  }

  /** Positions to fill. Older traces do not name them: what was touched, or all that follows the prompt. */
  get holes() {
    if (this.prompt.holes) return this.prompt.holes;
    if (this.known === null) {
      const length = this.prompt.token_ids.length;
      const touched = [...this.history.keys()].sort((a, b) => a - b);
      const end = Math.max(length + (this.header.settings?.max_tokens ?? 0), (touched.at(-1) ?? -1) + 1);
      this.known = touched[0] < length ? touched : Array.from({ length: end - length }, (_, at) => length + at);
    }
    return this.known;
  }

  /** Number of positions on the canvas. */
  get length() {
    return Math.max(this.prompt.token_ids.length, (this.holes.at(-1) ?? -1) + 1);
  }

  /** The text of a token; its number where no line gave a text. @param {number} id */
  text(id) {
    return this.texts.get(id) ?? `#${id}`;
  }

  /** The text of a token of the prompt. Older traces have that of the whole prompt: it stands at its first position. */
  promptText(position) {
    if (this.prompt.tokens || this.holes[0] < this.prompt.token_ids.length)
      return this.text(this.prompt.token_ids[position]);
    return position === 0 ? this.prompt.text : "";
  }

  /** The text that a position has in the end, as far as it is known. @param {number} position */
  finalText(position) {
    const commit = this.history.get(position)?.commits.at(-1)?.commit;
    return commit ? this.text(commit.token_id) : null;
  }

  /**
   * A position after so many passes. kind: prompt, done or open.
   * @param {number} position @param {number} shown @param {Set<number>} holes
   */
  cell(position, shown, holes) {
    if (!holes.has(position)) {
      return { kind: "prompt", position, text: this.promptText(position) };
    }
    const past = this.history.get(position);
    const commit = past && latest(past.commits, shown);
    const reopened = past && latest(past.reopened, shown);
    if (commit && !(reopened && reopened.pass >= commit.pass)) {
      const { token_id, probability } = commit.commit;
      const fresh = commit.pass === shown;
      return { kind: "done", position, text: this.text(token_id), id: token_id, pass: commit.pass, probability, fresh };
    }
    const seen = past && latest(past.seen, shown);
    const best = seen?.open.candidates[0];
    return {
      kind: "open",
      position,
      guess: best ? this.text(best[0]) : null,
      probability: best ? best[1] : null,
      reopened: reopened ? reopened.pass : null,
      left: this.ended && shown >= this.passes.length,
    };
  }

  /** Every position after so many passes. @param {number} shown */
  cells(shown) {
    const holes = new Set(this.holes);
    return Array.from({ length: this.length }, (_, position) => this.cell(position, shown, holes));
  }

  /** Filled positions after each pass, from pass 0. */
  filled() {
    let count = 0;
    return [0, ...this.passes.map((line) => (count += line.committed.length - line.remasked.length))];
  }

  /** What a position looked like in a pass, and what else was open there; null if it was not open. */
  seen(position, pass) {
    const line = this.passes[pass - 1];
    const open = line?.open?.find((one) => one.position === position);
    if (!open) return null;
    const commit = line.committed.find((one) => one.position === position) ?? null;
    return { line, open, commit };
  }
}

/** The rows of a trace, given as its lines. @param {any[]} lines */
export function runsOf(lines) {
  const [header, ...rest] = lines;
  const runs = (header.prompts ?? [{}]).map((_, row) => new Run(header, row));
  for (const line of rest) runs[line.row]?.add(line);
  return runs;
}

/** The lines of a run, as a trace has them. @param {Run} run */
export function linesOf(run) {
  const header = { ...run.header, prompts: [run.prompt] };
  return [header, ...run.passes, ...(run.result ? [run.result] : [])].map((line) =>
    "row" in line ? { ...line, row: 0 } : line,
  );
}
