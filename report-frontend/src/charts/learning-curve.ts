// What more labelled images, or more turns, are worth: one line per name, with a band.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { chanceLine } from "../chance";
import { clipped } from "./critical-difference";

export interface CurvePoint {
  name: string;
  x: number;
  y: number;
  low: number | null;
  high: number | null;
}

export interface CurveOptions {
  xLabel: string;
  yLabel: string;
  format: (x: number) => string;
  linear?: boolean;
  percent?: boolean;
  chance?: number | null;
}

const SYMBOLS = ["circle", "triangle", "square", "diamond", "star", "wye", "cross"] as const;
const LETTER = 7.6;
const NARROW = 560;
const LINE = 18;

export function learningCurve(points: CurvePoint[], names: string[], options: CurveOptions, width: number, palette: Palette): SVGSVGElement {
  const xs = [...new Set(points.map((p) => p.x))].sort((a, b) => a - b);
  const end = xs[xs.length - 1] * (xs.length > 1 ? 1 : 2);
  const place = (name: string) => names.indexOf(name);
  const colour = (p: { name: string }) => palette.categories[place(p.name) % palette.categories.length];
  const symbol = (p: { name: string }) => SYMBOLS[place(p.name) % SYMBOLS.length];
  const value = options.percent ? (y: number) => `${(100 * y).toFixed(1)}%` : (y: number) => y.toFixed(3);
  const ends = names.map((name) => points.filter((p) => p.name === name).sort((a, b) => b.x - a.x)[0]).filter(Boolean);
  // Names stand at the ends of the lines; where there is no room for them, above the drawing.
  const longest = Math.max(...ends.map((p) => p.name.length), 4) * LETTER + 24;
  const above = width < NARROW || longest > width * 0.38;
  const room = above ? 16 : longest;
  const marginTop = above ? ends.length * LINE + 34 : 26;
  const draw = (extra: Plot.Markish[]) =>
    Plot.plot({
      ...base(width, palette, ends.map((p) => `${p.name}: ${value(p.y)} at ${options.format(p.x)}`).join("; ")),
      height: Math.max(300, Math.min(420, width * 0.62)) + (above ? marginTop - 26 : 0),
      marginLeft: 50,
      marginRight: room,
      marginTop,
      marginBottom: 46,
      x: { type: options.linear ? "linear" : "log", base: options.linear ? undefined : 2, domain: [xs[0], end], label: options.xLabel, labelAnchor: "center", labelOffset: 38, ticks: xs, tickFormat: options.format, insetLeft: 8, insetRight: 8 },
      y: { label: above ? null : `↑ ${options.yLabel}`, nice: true, ticks: 6, tickFormat: options.percent ? (y: number) => `${Math.round(100 * y)}%` : (y: number) => y.toFixed(2) },
      marks: [
        Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
        ...chanceLine(options.chance, points.flatMap((p) => [p.low ?? p.y, p.high ?? p.y]), "y", palette),
        Plot.areaY(points.filter((p) => p.low !== null), { x: "x", y1: "low", y2: "high", z: "name", fill: colour, fillOpacity: 0.14 }),
        Plot.line(points, { x: "x", y: "y", z: "name", stroke: colour, strokeWidth: 2, sort: "x" }),
        Plot.dot(points, { x: "x", y: "y", fill: colour, symbol, r: 4, stroke: palette.surface, strokeWidth: 0.8 }),
        ...extra,
        Plot.tip(points, Plot.pointer({ x: "x", y: "y", fill: palette.surface, stroke: palette.line, title: (p: CurvePoint) => `${p.name}\n${options.yLabel} ${value(p.y)}${p.low === null ? "" : ` (${value(p.low)} to ${value(p.high!)})`}\n${options.format(p.x)}` })),
      ],
    });
  if (above) {
    const list = ends.flatMap((p, k) => {
      const dy = k * LINE - marginTop + 12;
      return [
        Plot.dot([p], { frameAnchor: "top-left", dx: -38, dy, fill: colour(p), symbol: symbol(p), r: 4 }),
        Plot.text([p], { frameAnchor: "top-left", dx: -26, dy: dy - 6, text: () => clipped(p.name, Math.floor((width - 30) / LETTER)), textAnchor: "start", fill: colour(p), fontWeight: 600 }),
      ];
    });
    return draw([...list, Plot.text([`↑ ${options.yLabel}`], { frameAnchor: "top-left", dx: -46, dy: -20, textAnchor: "start", fill: palette.ink })]) as SVGSVGElement;
  }
  const bare = draw([]);
  const y = bare.scale("y")!;
  // Pushed apart where lines end together.
  const labels = ends.map((p) => ({ name: p.name, at: y.apply(p.y) as number })).sort((a, b) => a.at - b.at);
  for (let k = 1; k < labels.length; k++) labels[k].at = Math.max(labels[k].at, labels[k - 1].at + 14);
  const overflow = labels.length ? labels[labels.length - 1].at - Number(bare.getAttribute("height")) + 46 : 0;
  if (overflow > 0) for (let k = labels.length - 1, limit = labels[k].at - overflow; k >= 0; k--, limit -= 14) labels[k].at = Math.min(labels[k].at, limit);
  const marks = labels.map((label) =>
    Plot.text([label], { x: end, y: y.invert!(label.at), text: () => label.name, dx: 14, textAnchor: "start", fill: colour(label), fontWeight: 600 }),
  );
  return draw(marks) as SVGSVGElement;
}
