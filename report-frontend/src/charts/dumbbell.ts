// Tool alone and agent with the tool on one line: which way the agent moves, and how far.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { percent } from "../format";
import { clipped } from "./critical-difference";
import { LETTER } from "./intervals";

export interface DumbbellRow {
  name: string;
  first: number | null;
  tool: number | null;
  final: number;
  low: number | null;
  high: number | null;
  /** Final answer minus tool, with its interval. */
  gain: [number | null, number | null, number | null];
  strong: boolean;
}

const NARROW = 520;

export function dumbbell(rows: DumbbellRow[], width: number, palette: Palette): SVGSVGElement {
  const data = rows.map((row, k) => ({ ...row, k }));
  const longest = Math.max(...rows.map((row) => row.name.length), 4) * LETTER + 18;
  const above = width < NARROW && longest > width * 0.3;
  const left = above ? 10 : Math.min(width * 0.4, longest);
  const right = 64;
  const step = above ? 46 : 32;
  const both = data.filter((row) => row.tool !== null);
  const same = (row: DumbbellRow) => Math.abs(row.final - row.tool!) < 5e-4;
  const colour = (row: DumbbellRow) => (same(row) ? palette.ink : row.final > row.tool! ? palette.accent : palette.second);
  const gain = (row: DumbbellRow) => (row.tool === null ? "" : same(row) ? "0.0" : `${row.final > row.tool ? "+" : "−"}${(100 * Math.abs(row.final - row.tool)).toFixed(1)}`);
  const describe = (row: DumbbellRow) =>
    [
      row.name,
      `final answer ${percent(row.final, 1)}${row.low === null ? "" : ` (${percent(row.low, 1)} to ${percent(row.high!, 1)})`}`,
      row.tool === null ? "no tool" : `tool alone ${percent(row.tool, 1)}`,
      row.first === null ? "" : `first answer ${percent(row.first, 1)}`,
      row.tool === null || row.gain[1] === null ? "" : `agent minus tool ${gain(row)} points (${(100 * row.gain[1]!).toFixed(1)} to ${(100 * row.gain[2]!).toFixed(1)})`,
    ]
      .filter(Boolean)
      .join("\n");
  const values = data.flatMap((row) => [row.first, row.tool, row.final, row.low, row.high]).filter((v): v is number => v !== null);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const room = Math.max(0.04, (most - least) * 0.06);
  const domain = [Math.max(0, least - room), Math.min(1, most + room)];
  const legend = [
    { text: "○ tool alone", fill: palette.ink },
    { text: "● agent, final answer", fill: palette.accent },
    { text: "| agent, first answer", fill: palette.muted },
  ];
  const top = above || width < 620 ? 26 + 18 * legend.length : 40;
  return Plot.plot({
    ...base(width, palette, rows.map((row) => describe(row).replace(/\n/g, ", ")).join("; ")),
    height: top + rows.length * step + 46,
    marginLeft: left,
    marginRight: right,
    marginTop: top,
    marginBottom: 44,
    x: { domain, label: "weighted accuracy", labelAnchor: "center", labelOffset: 36, ticks: Math.max(3, Math.min(8, width / 110)), tickFormat: (x: number) => `${Math.round(100 * x)}%` },
    y: { type: "point", domain: rows.map((_, k) => k), axis: null, padding: 0.6 },
    marks: [
      Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.link(data.filter((row) => row.low !== null), { x1: "low", x2: "high", y1: "k", y2: "k", stroke: palette.line, strokeWidth: 1.4, strokeOpacity: 0.7 }),
      Plot.link(both, { x1: "tool", x2: "final", y1: "k", y2: "k", stroke: colour, strokeWidth: 4, strokeOpacity: 0.55, strokeLinecap: "round" }),
      Plot.vector(data.filter((row) => row.first !== null), { x: "first", y: "k", shape: { draw: (context, length) => { context.moveTo(0, 0); context.lineTo(0, -length); } }, length: 14, anchor: "middle", stroke: palette.muted, strokeWidth: 2.2 }),
      Plot.dot(both, { x: "tool", y: "k", r: 5.5, fill: palette.surface, stroke: palette.ink, strokeWidth: 1.8 }),
      Plot.dot(data, { x: "final", y: "k", r: 5.5, fill: (row: DumbbellRow) => (row.tool === null ? palette.accent : colour(row)), stroke: palette.surface, strokeWidth: 1 }),
      ...[true, false].map((strong) => above
        ? Plot.text(data.filter((row) => row.strong === strong), { fontWeight: strong ? 650 : 400, y: "k", text: (row: DumbbellRow) => clipped(row.name, Math.floor((width - 20) / LETTER)), frameAnchor: "left", textAnchor: "start", dx: -4, dy: -17, fill: palette.ink, stroke: palette.surface, strokeWidth: 4 })
        : Plot.text(data.filter((row) => row.strong === strong), { fontWeight: strong ? 650 : 400, y: "k", text: (row: DumbbellRow) => clipped(row.name, Math.floor((left - 14) / LETTER)), frameAnchor: "left", textAnchor: "end", dx: -10, fill: palette.ink })),
      Plot.text(both, { y: "k", text: gain, frameAnchor: "right", textAnchor: "start", dx: 8, fill: colour, fontWeight: 600, fontVariant: "tabular-nums" }),
      Plot.text(["points"], { frameAnchor: "top-right", textAnchor: "start", dx: 8, dy: -12, fill: palette.muted }),
      ...legend.map((entry, k) => Plot.text([entry.text], { frameAnchor: "top-left", textAnchor: "start", dx: width < 620 ? 4 - left : [0, 108, 272][k], dy: width < 620 ? 18 * k + 10 - top : -24, fill: entry.fill, fontWeight: 600 })),
      Plot.tip(data, Plot.pointerY({ x: "final", y: "k", fill: palette.surface, stroke: palette.line, title: describe })),
    ],
  }) as SVGSVGElement;
}
