// @ts-check
// What is shown: one or two runs, the pass, the selected position, and whether the passes go by. Views listen.

export const SPEEDS = [1, 2, 4, 8, 16, 32]; // passes a second

export class Stage {
  constructor() {
    /** @type {(import("./run.js").Run)[]} */
    this.runs = [];
    this.shown = 0;
    this.playing = false;
    this.speed = 8;
    this.selected = null; // {run, position}
    this.live = 0; // answers that are still coming
    this.listeners = [];
    this.timer = 0;
    this.pending = false;
  }

  /** Passes of the longest run. */
  get last() {
    return Math.max(0, ...this.runs.map((run) => run.passes.length));
  }

  /** Show other runs, from their beginning or their end. @param {any[]} runs @param {{at?: number}} [how] */
  open(runs, { at = 0 } = {}) {
    this.pause();
    this.runs = runs;
    this.shown = Math.min(at, this.last);
    this.selected = null;
    this.changed();
  }

  /** @param {number} pass */
  show(pass) {
    this.pause();
    this.#go(pass);
  }

  #go(pass) {
    this.shown = Math.max(0, Math.min(pass, this.last));
    this.changed();
  }

  play() {
    if (this.playing) return;
    if (this.shown >= this.last && this.live === 0) this.shown = 0;
    this.playing = true;
    this.changed();
    this.#tick();
  }

  #tick() {
    this.timer = window.setTimeout(() => {
      if (this.shown < this.last) this.#go(this.shown + 1);
      else if (this.live === 0) {
        this.pause();
        return;
      }
      this.#tick();
    }, 1000 / this.speed);
  }

  pause() {
    window.clearTimeout(this.timer);
    if (!this.playing) return;
    this.playing = false;
    this.changed();
  }

  /** @param {number} run @param {number | null} position */
  select(run, position) {
    this.selected = position === null ? null : { run, position };
    this.changed();
  }

  /** @param {() => void} listener */
  listen(listener) {
    this.listeners.push(listener);
  }

  /** Tell the views, once a frame. */
  changed() {
    if (this.pending) return;
    this.pending = true;
    window.requestAnimationFrame(() => {
      this.pending = false;
      for (const listener of this.listeners) listener();
    });
  }
}
