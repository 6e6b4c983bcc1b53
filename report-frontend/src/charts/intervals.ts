// Values with intervals, one row each; the best on top. Headings part the rows into groups.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { chanceLine } from "../chance";
import { clipped } from "./critical-difference";

export interface IntervalRow {
  name: string;
  value: number;
  low: number | null;
  high: number | null;
  strong: boolean;
  note?: string;
}

export interface Heading {
  heading: string;
}

export interface IntervalOptions {
  label?: string;
  /** What it means to lie left and right of zero, below the ends of the axis. */
  sides?: [string, string];
  /** Differences: a line at zero, and signs. */
  zero?: boolean;
  /** Shares, shown in percent. */
  percent?: boolean;
  chance?: number | null;
}

export const LETTER = 7.4;
const NARROW = 480;

export function intervalRows(rows: (IntervalRow | Heading)[], options: IntervalOptions, width: number, palette: Palette): SVGSVGElement {
  const values = rows.flatMap((row, k) => ("heading" in row ? [] : [{ ...row, k }]));
  const headings = rows.flatMap((row, k) => ("heading" in row ? [{ ...row, k }] : []));
  const longest = Math.max(...values.map((row) => row.name.length), 4) * LETTER + 18;
  // On a narrow screen long names stand above their bars.
  const above = width < NARROW && longest > width * 0.34;
  const room = above ? 10 : Math.min(width * 0.45, longest);
  const step = above ? 42 : 26;
  const digits = (x: number) => {
    const sign = options.zero ? (x > 0 ? "+" : x < 0 ? "−" : "") : "";
    const size = options.zero ? Math.abs(x) : x;
    return sign + (options.percent ? (100 * size).toFixed(1) + (options.zero ? "" : "%") : size.toFixed(3).replace("-", "−"));
  };
  // Both sides in one line where they fit; else the right one in a line of its own.
  const [left, right] = (options.sides ?? ["", ""]).map((side) => clipped(side, Math.floor(width / LETTER) - 4));
  const stacked = (left.length + right.length + 8) * LETTER > width;
  const tick = options.percent ? { tickFormat: (x: number) => `${Math.round(100 * x)}${options.zero ? "" : "%"}` } : {};
  return Plot.plot({
    ...base(width, palette, values.map((row) => `${row.name}: ${digits(row.value)} (${row.low === null ? "no interval" : `${digits(row.low)} to ${digits(row.high!)}`})`).join("; ")),
    height: rows.length * step + 68 + (stacked ? 16 : 0),
    marginLeft: room,
    marginRight: 60,
    marginTop: above ? 18 : 10,
    marginBottom: 44 + (stacked ? 16 : 0),
    x: { label: options.label ?? null, labelAnchor: "center", labelOffset: 36, nice: true, insetLeft: 6, insetRight: 6, ticks: Math.max(3, Math.min(8, width / 90)), ...tick },
    y: { type: "point", domain: rows.map((_, k) => k), axis: null, padding: 0.5 },
    marks: [
      Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
      ...chanceLine(options.chance, values.flatMap((row) => [row.low ?? row.value, row.high ?? row.value]), "x", palette),
      ...(options.zero ? [Plot.ruleX([0], { stroke: palette.ink, strokeWidth: 1.2 })] : []),
      Plot.link(values.filter((row) => row.low !== null), { x1: "low", x2: "high", y1: "k", y2: "k", stroke: (row: IntervalRow) => (row.strong ? palette.accent : palette.line), strokeWidth: 4, strokeLinecap: "round", strokeOpacity: 0.55 }),
      Plot.dot(values, { x: "value", y: "k", r: 5, fill: (row: IntervalRow) => (row.strong ? palette.accent : palette.surface), stroke: (row: IntervalRow) => (row.strong ? palette.accent : palette.line), strokeWidth: 1.8 }),
      Plot.text(headings, { y: "k", text: (row: Heading) => row.heading, frameAnchor: "left", textAnchor: "start", dx: 4 - room, dy: 2, fill: palette.ink, fontWeight: 650, fontSize: 13 }),
      above
        ? Plot.text(values, { y: "k", text: (row: IntervalRow) => clipped(row.name, Math.floor((width - 20) / LETTER)), frameAnchor: "left", textAnchor: "start", dx: -4, dy: -15, fill: palette.ink, stroke: palette.surface, strokeWidth: 4, title: "name" })
        : Plot.text(values, { y: "k", text: (row: IntervalRow) => clipped(row.name, Math.floor((room - 14) / LETTER)), frameAnchor: "left", textAnchor: "end", dx: -10, fill: palette.ink, title: "name" }),
      Plot.text(values, { y: "k", text: (row: IntervalRow) => digits(row.value), frameAnchor: "right", textAnchor: "start", dx: 8, fill: palette.ink, fontVariant: "tabular-nums" }),
      ...(options.sides
        ? [
            Plot.text([`← ${left}`], { frameAnchor: "bottom-left", textAnchor: "start", dx: 4 - (stacked ? room : 0), dy: 38, fill: palette.ink }),
            Plot.text([`${right} →`], { frameAnchor: "bottom-right", textAnchor: "end", dx: stacked ? 52 : 0, dy: stacked ? 54 : 38, fill: palette.ink }),
          ]
        : []),
      Plot.tip(values, Plot.pointerY({ x: "value", y: "k", fill: palette.surface, stroke: palette.line, title: (row: IntervalRow) => `${row.name}\n${digits(row.value)}${row.low === null ? "" : ` (${digits(row.low)} to ${digits(row.high!)})`}${row.note ? `\n${row.note}` : ""}` })),
    ],
  }) as SVGSVGElement;
}
