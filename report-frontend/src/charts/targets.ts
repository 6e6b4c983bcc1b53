// Predicted against true numbers, and survival of two groups of patients.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";

export interface TruePoint {
  truth: number;
  said: number;
  name: string;
}

/** One scale for both axes: on the line the prediction is right. */
export function scatter(points: TruePoint[], label: string, width: number, palette: Palette): SVGSVGElement {
  const numbers = points.flatMap((point) => [point.truth, point.said]);
  const [low, high] = [numbers.reduce((a, b) => Math.min(a, b)), numbers.reduce((a, b) => Math.max(a, b))];
  const room = (high - low || 1) * 0.03;
  const domain = [low - room, high + room];
  const side = Math.min(width, 520);
  return Plot.plot({
    ...base(side, palette, `Predicted against true ${label} of ${points.length} rows`),
    height: side * 0.9,
    marginLeft: 56,
    marginBottom: 46,
    marginTop: 20,
    x: { domain, label: `true ${label}`, labelAnchor: "center", labelOffset: 38, ticks: 5 },
    y: { domain, label: `predicted ${label}`, labelAnchor: "center", ticks: 5 },
    marks: [
      Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.line([domain, domain].map((pair, k) => [pair[k], pair[k]]), { stroke: palette.line, strokeDasharray: "4,4" }),
      Plot.dot(points, { x: "truth", y: "said", r: points.length > 500 ? 2 : 3.5, fill: palette.accent, fillOpacity: points.length > 500 ? 0.35 : 0.7 }),
      Plot.tip(points, Plot.pointer({ x: "truth", y: "said", fill: palette.surface, stroke: palette.line, title: (p: TruePoint) => `${p.name}\ntrue ${p.truth.toPrecision(4)}\npredicted ${p.said.toPrecision(4)}` })),
    ],
  }) as SVGSVGElement;
}

export interface Survival {
  name: string;
  patients: number;
  events: number;
  last: number;
  atRisk: number[];
  times: number[];
  alive: number[];
  low: number[];
  high: number[];
}

export function survival(curves: Survival[], label: string, width: number, palette: Palette): SVGSVGElement {
  const colours = [palette.second, palette.accent];
  const steps = curves.flatMap((curve, k) => [
    { k, x: 0, alive: 1, low: 1, high: 1 },
    ...curve.times.map((x, i) => ({ k, x, alive: curve.alive[i], low: curve.low[i], high: curve.high[i] })),
    { k, x: curve.last, alive: curve.alive.at(-1) ?? 1, low: curve.low.at(-1) ?? 1, high: curve.high.at(-1) ?? 1 },
  ]);
  const side = Math.min(width, 560);
  const ends = curves.map((curve, k) => ({ k, y: curve.alive.at(-1) ?? 1, name: curve.name }));
  // Names where the curves end, apart from each other.
  if (Math.abs(ends[0].y - ends[1].y) < 0.08) {
    const middle = Math.max(0.05, (ends[0].y + ends[1].y) / 2);
    [ends[0].y, ends[1].y] = ends[0].y <= ends[1].y ? [middle - 0.04, middle + 0.04] : [middle + 0.04, middle - 0.04];
  }
  const colour = (d: { k: number }) => colours[d.k];
  return Plot.plot({
    ...base(side, palette, curves.map((curve) => `${curve.name}: ${curve.events} events in ${curve.patients} patients`).join("; ")),
    height: side * 0.7,
    marginLeft: 48,
    marginBottom: 46,
    marginTop: 20,
    marginRight: 84,
    x: { domain: [0, Math.max(...curves.map((curve) => curve.last))], label, labelAnchor: "center", labelOffset: 38, ticks: 5 },
    y: { domain: [0, 1], label: "share without an event", labelAnchor: "center", ticks: 5 },
    marks: [
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.areaY(steps, { x: "x", y1: "low", y2: "high", z: "k", curve: "step-after", fill: colour, fillOpacity: 0.15 }),
      Plot.line(steps, { x: "x", y: "alive", z: "k", curve: "step-after", stroke: colour, strokeWidth: 2 }),
      Plot.text(ends, { x: Math.max(...curves.map((curve) => curve.last)), y: "y", text: "name", textAnchor: "start", dx: 8, fill: colour, fontWeight: 600 }),
    ],
  }) as SVGSVGElement;
}
