// @ts-check
// A Sudoku as its board, where the prompt holds one and the answer is a digit for each of its cells.

import { el } from "./dom.js";
import { counted } from "./words.js";

const SIDES = [9, 4]; // of the boards that are known
const DIGIT = /^[0-9]$/;

/**
 * The givens of the board and the position of each cell, or null if the run is about something else.
 * @param {import("./run.js").Run} run
 */
export function boardOf(run) {
  for (const side of SIDES) {
    const cells = side * side;
    const found = new RegExp(`(?<![0-9.])[0-${side}.]{${cells}}(?![0-9.])`).exec(run.prompt.text ?? "");
    if (!found || run.holes.length < cells || run.holes[0] < run.prompt.token_ids.length) continue;
    const positions = run.holes.slice(0, cells);
    const digits = positions.every((position) => DIGIT.test(run.finalText(position) ?? "1"));
    if (digits) return { side, positions, givens: [...found[0]].map((digit) => (/[0.]/.test(digit) ? null : digit)) };
  }
  return null;
}

/** Cells whose digit stands twice in a row, column or box. @param {(string | null)[]} digits @param {number} side */
export function clashes(digits, side) {
  const root = Math.sqrt(side);
  const units = new Map();
  digits.forEach((digit, at) => {
    const row = Math.floor(at / side);
    const column = at % side;
    const box = root * Math.floor(row / root) + Math.floor(column / root);
    for (const unit of [`r${row}`, `c${column}`, `b${box}`]) {
      if (digit !== null) units.set(unit + digit, [...(units.get(unit + digit) ?? []), at]);
    }
  });
  return new Set([...units.values()].filter((cells) => cells.length > 1).flat());
}

/** @param {import("./stage.js").Stage} stage @param {number} index */
export function boardView(stage, index) {
  const node = el("div", { class: "board", role: "img", hidden: true });
  let cells = [];

  const update = () => {
    const run = stage.runs[index];
    const board = boardOf(run);
    node.hidden = board === null;
    if (board === null) return;
    if (cells.length !== board.positions.length) {
      cells = board.positions.map(() => el("span", { class: "square" }));
      cells.forEach((cell, at) =>
        cell.addEventListener("click", () => stage.select(index, boardOf(stage.runs[index])?.positions[at] ?? null)),
      );
      node.replaceChildren(...cells);
      node.style.setProperty("--side", String(board.side));
    }
    node.style.setProperty("--n", String(Math.max(stage.last, 2)));
    const holes = new Set(run.holes);
    const states = board.positions.map((position) => run.cell(position, stage.shown, holes));
    const wrong = clashes(
      states.map((state) => (state.kind === "done" ? state.text : null)),
      board.side,
    );
    states.forEach((state, at) =>
      square(
        cells[at],
        state,
        at,
        board,
        wrong.has(at),
        stage.selected?.run === index && stage.selected.position === state.position,
      ),
    );
    const filled = states.filter((state) => state.kind === "done").length;
    const clash = wrong.size ? `, ${counted(wrong.size, "cell")} in conflict` : "";
    node.setAttribute("aria-label", `Sudoku board: ${filled} of ${states.length} cells filled${clash}`);
  };
  return { node, update };
}

function square(node, state, at, board, wrong, selected) {
  const root = Math.sqrt(board.side);
  const column = at % board.side;
  const row = Math.floor(at / board.side);
  const given = board.givens[at];
  const changed = given !== null && state.kind === "done" && state.text !== given;
  const edges = [column % root === 0 && column > 0 && "west", row % root === 0 && row > 0 && "north"];
  node.className = [
    "square",
    state.kind,
    state.fresh && "fresh",
    state.reopened && "reopened",
    given && "given",
    (wrong || changed) && "clash",
    selected && "selected",
    ...edges,
  ]
    .filter(Boolean)
    .join(" ");
  const text = state.kind === "done" ? state.text : (state.guess ?? "");
  node.textContent = DIGIT.test(text) ? text : state.kind === "done" ? "?" : "";
  node.style.setProperty("--p", String(state.pass ?? 0));
  node.style.setProperty("--sure", String(state.kind === "open" ? (state.probability ?? 0) : 1));
}
