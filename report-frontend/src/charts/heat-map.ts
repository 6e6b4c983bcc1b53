// Values of pairs as a square of cells, in the order of their clusters, with the tree beside it.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { clipped } from "./critical-difference";

export interface Alike {
  dataset: string;
  measure: string;
  label: string;
  encoders: string[];
  /** [value, low, high] of each pair. */
  cells: (number | null)[][][];
  /** For each joint of the tree four places along the encoders, and four distances. */
  branches: number[][][];
}

/** The columns have the numbers of the rows, so that no name has to be turned. */
export function heatMap(table: Alike, width: number, palette: Palette): SVGSVGElement {
  const n = table.encoders.length;
  const narrow = width < 560;
  const [marginLeft, tree] = [narrow ? Math.min(150, width * 0.4) : 200, narrow ? 36 : 110];
  const side = Math.min((width - marginLeft - tree - 12) / n, 56);
  const square = side * n;
  const cells = table.cells.flatMap((row, y) => row.map((cell, x) => ({ x, y, value: cell[0], low: cell[1], high: cell[2] })));
  const deepest = Math.max(...table.branches.flatMap(([, far]) => far), 1e-9);
  const across = (distance: number) => n - 0.5 + (6 + (distance / deepest) * (tree - 12)) / side;
  const lines = table.branches.flatMap(([places, far], key) => places.map((place, k) => ({ key, x: across(far[k]), y: place })));
  const right = n - 0.5 + tree / side;
  const strong = (value: number | null) => value !== null && value > 0.5;
  const text = side >= 34 ? cells.filter((cell) => cell.value !== null) : [];
  const names = table.encoders.map((name, y) => ({ y, name: `${y + 1}  ${clipped(name, narrow ? 16 : 24)}` }));
  return Plot.plot({
    ...base(width, palette, `${table.label}. ${cells.filter((cell) => cell.x < cell.y).map((cell) => `${table.encoders[cell.x]} and ${table.encoders[cell.y]}: ${cell.value ?? "no value"}`).join("; ")}`),
    height: square + 28,
    marginLeft,
    marginRight: 12,
    marginTop: 24,
    marginBottom: 4,
    x: { domain: [-0.5, right], range: [marginLeft, marginLeft + square + tree], axis: null },
    y: { domain: [-0.5, n - 0.5], range: [24, 24 + square], axis: null },
    marks: [
      Plot.rect(cells, {
        x1: (d) => d.x - 0.5,
        x2: (d) => d.x + 0.5,
        y1: (d) => d.y - 0.5,
        y2: (d) => d.y + 0.5,
        inset: 0.75,
        fill: palette.accent,
        fillOpacity: (d) => (d.value === null ? 0 : Math.min(1, strong(d.value) ? 0.6 + 0.8 * (d.value - 0.5) : 0.04 + 0.6 * Math.max(0, d.value))),
        title: (d) => `${table.encoders[d.y]} and ${table.encoders[d.x]}: ${d.value === null ? "no value" : d.value.toFixed(3)}${d.low === null ? "" : ` [${d.low.toFixed(3)}, ${d.high!.toFixed(3)}]`}`,
      }),
      Plot.text(text.filter((d) => strong(d.value)), { x: "x", y: "y", text: (d) => d.value!.toFixed(2), fill: palette.surface, pointerEvents: "none" }),
      Plot.text(text.filter((d) => !strong(d.value)), { x: "x", y: "y", text: (d) => d.value!.toFixed(2), fill: palette.ink, pointerEvents: "none" }),
      Plot.text(names, { x: -0.5, y: "y", text: "name", textAnchor: "end", dx: -8, fill: palette.ink }),
      Plot.text(names, { x: "y", y: -0.5, text: (d: { y: number }) => `${d.y + 1}`, dy: -10, fill: palette.muted }),
      Plot.line(lines, { x: "x", y: "y", z: "key", stroke: palette.line, strokeWidth: 1.2 }),
    ],
  }) as SVGSVGElement;
}
