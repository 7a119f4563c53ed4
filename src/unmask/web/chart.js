// @ts-check
// A small line chart in SVG: exact values, few lines, one marker.

import { svg } from "./dom.js";

const PAD = { left: 40, right: 14, top: 12, bottom: 34 };

/**
 * series: {name, points: [[x, y], ...], kind, stepped?}; `level` is a horizontal line; `whole`: values are counts.
 * @param {{width: number, height: number, series: any[], x: [number, number], y: [number, number], xLabel: string,
 *   marker?: number, level?: number, label: string, whole?: boolean}} given
 */
export function lineChart({ width, height, series, x, y, xLabel, marker, level, label, whole }) {
  const right = width - PAD.right;
  const bottom = height - PAD.bottom;
  const atX = (value) => PAD.left + ((value - x[0]) / Math.max(1e-9, x[1] - x[0])) * (right - PAD.left);
  const atY = (value) => bottom - ((value - y[0]) / Math.max(1e-9, y[1] - y[0])) * (bottom - PAD.top);
  const node = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    class: "chart",
    role: "img",
    "aria-label": label,
  });
  const text = (content, left, top, anchor = "middle") =>
    svg("text", { x: left, y: top, "text-anchor": anchor }, content);
  for (const tick of ticks(y, whole)) {
    node.append(
      svg("line", { class: "grid", x1: PAD.left, x2: right, y1: atY(tick), y2: atY(tick) }),
      text(String(tick), PAD.left - 6, atY(tick) + 4, "end"),
    );
  }
  for (const tick of ticks(x, true)) node.append(text(String(tick), atX(tick), bottom + 16));
  node.append(text(xLabel, right, height - 4, "end"));
  if (marker !== undefined)
    node.append(svg("line", { class: "marker", x1: atX(marker), x2: atX(marker), y1: PAD.top, y2: bottom }));
  if (level !== undefined) {
    node.append(svg("line", { class: "level", x1: PAD.left, x2: right, y1: atY(level), y2: atY(level) }));
  }
  for (const one of series) node.append(line(one, atX, atY, marker));
  return node;
}

function line({ points, kind, stepped }, atX, atY, marker) {
  const path = points.map(([x, y], at) => {
    if (at === 0) return `M${atX(x)} ${atY(y)}`;
    return stepped ? `H${atX(x)}V${atY(y)}` : `L${atX(x)} ${atY(y)}`;
  });
  const group = svg("g", { class: kind }, svg("path", { d: path.join("") }));
  const dot = points.findLast(([x]) => marker !== undefined && x <= marker) ?? (points.length === 1 ? points[0] : null);
  if (dot) group.append(svg("circle", { cx: atX(dot[0]), cy: atY(dot[1]), r: 3.5 }));
  return group;
}

/** A few round numbers within a range. @param {[number, number]} range @param {boolean} [whole] */
export function ticks([low, high], whole = false) {
  const span = high - low;
  if (span <= 0) return [low];
  const rough = span / 4;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(
    whole ? 1 : 0,
    [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough * 0.8) ?? unit,
  );
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first;
  return Array.from({ length: count + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}
