// What more labelled images are worth: one line per encoder, with a band.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { clipped } from "./critical-difference";

export interface CurvePoint {
  name: string;
  x: number;
  y: number;
  low: number | null;
  high: number | null;
}

const SYMBOLS = ["circle", "triangle", "square", "diamond", "star", "wye", "cross"] as const;

export function learningCurve(points: CurvePoint[], names: string[], options: { xLabel: string; yLabel: string; format: (x: number) => string; linear?: boolean }, width: number, palette: Palette): SVGSVGElement {
  const xs = [...new Set(points.map((p) => p.x))].sort((a, b) => a - b);
  const end = xs[xs.length - 1] * (xs.length > 1 ? 1 : 2);
  const place = (name: string) => names.indexOf(name);
  const colour = (p: { name: string }) => palette.categories[place(p.name) % palette.categories.length];
  const symbol = (p: { name: string }) => SYMBOLS[place(p.name) % SYMBOLS.length];
  const ends = names.map((name) => points.filter((p) => p.name === name).sort((a, b) => b.x - a.x)[0]).filter(Boolean);
  const room = Math.min(170, width * 0.3);
  const draw = (extra: Plot.Markish[]) =>
    Plot.plot({
      ...base(width, palette, ends.map((p) => `${p.name}: ${p.y.toFixed(3)} at ${options.format(p.x)}`).join("; ")),
      height: Math.max(300, Math.min(420, width * 0.62)),
      marginLeft: 50,
      marginRight: room,
      marginBottom: 42,
      x: { type: options.linear ? "linear" : "log", domain: [xs[0], end], label: options.xLabel, labelAnchor: "center", ticks: xs, tickFormat: options.format, insetLeft: 8, insetRight: 8 },
      y: { label: `↑ ${options.yLabel}`, nice: true, ticks: 6, tickFormat: (y: number) => y.toFixed(2) },
      marks: [
        Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
        Plot.areaY(points.filter((p) => p.low !== null), { x: "x", y1: "low", y2: "high", z: "name", fill: colour, fillOpacity: 0.14 }),
        Plot.line(points, { x: "x", y: "y", z: "name", stroke: colour, strokeWidth: 2, sort: "x" }),
        Plot.dot(points, { x: "x", y: "y", fill: colour, symbol, r: 4, stroke: palette.surface, strokeWidth: 0.8 }),
        ...extra,
        Plot.tip(points, Plot.pointer({ x: "x", y: "y", fill: palette.surface, stroke: palette.line, title: (p: CurvePoint) => `${p.name}\n${options.yLabel} ${p.y.toFixed(3)}${p.low === null ? "" : ` (${p.low.toFixed(3)} to ${p.high!.toFixed(3)})`}\n${options.format(p.x)}` })),
      ],
    });
  const bare = draw([]);
  const y = bare.scale("y")!;
  // Names at the ends of the lines, pushed apart where lines end together.
  const labels = ends.map((p) => ({ name: p.name, at: y.apply(p.y) as number })).sort((a, b) => a.at - b.at);
  for (let k = 1; k < labels.length; k++) labels[k].at = Math.max(labels[k].at, labels[k - 1].at + 14);
  const overflow = labels.length ? labels[labels.length - 1].at - Number(bare.getAttribute("height")) + 46 : 0;
  if (overflow > 0) for (let k = labels.length - 1, limit = labels[k].at - overflow; k >= 0; k--, limit -= 14) labels[k].at = Math.min(labels[k].at, limit);
  const marks = labels.map((label) =>
    Plot.text([label], { x: end, y: y.invert!(label.at), text: () => clipped(label.name, Math.floor(room / 7.4) - 2), dx: 14, textAnchor: "start", fill: colour(label), fontWeight: 600 }),
  );
  return draw(marks) as SVGSVGElement;
}
