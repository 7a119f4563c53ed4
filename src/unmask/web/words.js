// @ts-check
// How numbers, tokens and positions read.

const END = /^<\|?(endoftext|eot_id|im_end|end_of_text|eos|\/s)\|?>$|^\[END\]$/i;
const SPECIAL = /^<\|(.+)\|>$/;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** A recorded number, to three digits; a missing one is a dash. @param {any} value */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 10 || size === 0) return value.toFixed(size >= 100 || size === 0 ? 0 : 1);
  return size >= 0.001 ? value.toFixed(3) : value.toExponential(1);
}

/** "1 pass", "2 passes". @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/** 1st, 2nd, 3rd, 4th. @param {number} n */
export function ordinal(n) {
  const tail = n % 100 > 10 && n % 100 < 14 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th");
  return `${n}${tail}`;
}

/** Whether the token ends a text. @param {string} text */
export function isEnd(text) {
  return END.test(text);
}

/** A token on one line, with signs for what cannot be seen. @param {string} text */
export function visible(text) {
  const special = SPECIAL.exec(text);
  if (special) return `‹${special[1]}›`;
  return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(CONTROL, "␦");
}

/** A token in its cell; spaces after a line break are layout. @param {string} text */
export function inCell(text) {
  return text.includes("\n") && text.trim() === "" ? text.replace(/[^\n]/g, "").replace(/\n/g, "↵") : visible(text);
}

/** A token in a sentence or a list, where spaces must be seen too. @param {string} text */
export function quoted(text) {
  const shown = visible(text).replace(/ /g, "␣");
  return shown === "" ? "(empty)" : shown;
}
