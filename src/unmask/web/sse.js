// @ts-check
// Server-sent events out of pieces of text, wherever the pieces are cut.

/**
 * A function that takes pieces of the stream and calls `onEvent(name, data)` for each whole event.
 * @param {(name: string, data: string) => void} onEvent
 */
export function eventReader(onEvent) {
  let rest = "";
  let name = "message";
  let data = [];
  const line = (text) => {
    if (text === "") {
      if (data.length) onEvent(name, data.join("\n"));
      name = "message";
      data = [];
      return;
    }
    const colon = text.indexOf(":");
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    if (field === "data") data.push(value);
  };
  return (piece) => {
    rest += piece;
    // A carriage return at the end may be half of a line break.
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? "";
    lines.forEach(line);
  };
}
