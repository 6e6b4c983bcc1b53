// Values with intervals, one row each; the best on top.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { clipped } from "./critical-difference";

export interface IntervalRow {
  name: string;
  value: number;
  low: number | null;
  high: number | null;
  strong: boolean;
  note?: string;
}

export function intervalRows(rows: IntervalRow[], options: { label: string; zero?: boolean }, width: number, palette: Palette): SVGSVGElement {
  const names = rows.map((row, k) => ({ ...row, k }));
  const room = Math.min(width * 0.4, Math.max(...rows.map((row) => row.name.length), 4) * 7.2 + 18);
  const digits = options.zero ? (x: number) => `${x > 0 ? "+" : x < 0 ? "−" : ""}${Math.abs(x).toFixed(3)}` : (x: number) => x.toFixed(3);
  return Plot.plot({
    ...base(width, palette, rows.map((row) => `${row.name}: ${row.value.toFixed(3)} (${row.low?.toFixed(3)} to ${row.high?.toFixed(3)})`).join("; ")),
    height: rows.length * 26 + 64,
    marginLeft: room,
    marginRight: 58,
    marginTop: 10,
    marginBottom: 40,
    x: { label: options.label, labelAnchor: "center", nice: true, insetLeft: 6, insetRight: 6, ticks: Math.max(3, Math.min(8, width / 90)) },
    y: { domain: names.map((row) => row.k), axis: null, padding: 0.3 },
    marks: [
      Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
      ...(options.zero ? [Plot.ruleX([0], { stroke: palette.ink, strokeWidth: 1.2 })] : []),
      Plot.link(names.filter((row) => row.low !== null), { x1: "low", x2: "high", y1: "k", y2: "k", stroke: (row: IntervalRow) => (row.strong ? palette.accent : palette.line), strokeWidth: 4, strokeLinecap: "round", strokeOpacity: 0.55 }),
      Plot.dot(names, { x: "value", y: "k", r: 5, fill: (row: IntervalRow) => (row.strong ? palette.accent : palette.surface), stroke: (row: IntervalRow) => (row.strong ? palette.accent : palette.line), strokeWidth: 1.8 }),
      Plot.text(names, { y: "k", text: (row: IntervalRow) => clipped(row.name, Math.floor(room / 7)), frameAnchor: "left", textAnchor: "end", dx: -10, fill: palette.ink, title: "name" }),
      Plot.text(names, { y: "k", text: (row: IntervalRow) => digits(row.value), frameAnchor: "right", textAnchor: "start", dx: 8, fill: palette.ink, fontVariant: "tabular-nums" }),
      Plot.tip(names, Plot.pointerY({ x: "value", y: "k", fill: palette.surface, stroke: palette.line, title: (row: IntervalRow) => `${row.name}\n${digits(row.value)}${row.low === null ? "" : ` (${digits(row.low)} to ${digits(row.high!)})`}${row.note ? `\n${row.note}` : ""}` })),
    ],
  }) as SVGSVGElement;
}
