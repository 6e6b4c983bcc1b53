// What an encoder gives against what it costs, and which encoders no other beats in both.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { compact } from "../format";
import { clipped } from "./critical-difference";

export interface CostPoint {
  name: string;
  x: number;
  y: number;
  low: number | null;
  high: number | null;
}

interface Axes {
  xLabel: string;
  yLabel: string;
  lowerX: boolean;
  lowerY: boolean;
}

export function frontier(points: CostPoint[], axes: Axes): CostPoint[] {
  const x = (p: CostPoint) => (axes.lowerX ? p.x : -p.x);
  const y = (p: CostPoint) => (axes.lowerY ? -p.y : p.y);
  const sorted = [...points].sort((a, b) => x(a) - x(b) || y(b) - y(a));
  const kept: CostPoint[] = [];
  for (const point of sorted) if (!kept.length || y(point) > y(kept[kept.length - 1])) kept.push(point);
  return kept;
}

export function pareto(points: CostPoint[], axes: Axes, width: number, palette: Palette): SVGSVGElement {
  const best = frontier(points, axes);
  const others = points.filter((point) => !best.includes(point));
  const few = points.length <= 12;
  const describe = (p: CostPoint) => `${p.name}\n${axes.yLabel} ${p.y.toFixed(3)}\n${axes.xLabel} ${compact(p.x)}`;
  const label = (data: CostPoint[], dy: number, weight: number) => Plot.text(data, { x: "x", y: "y", text: (d: CostPoint) => clipped(d.name, 20), dy, fill: palette.ink, stroke: palette.surface, strokeWidth: 4, fontWeight: weight });
  return Plot.plot({
    ...base(width, palette, `${axes.yLabel} against ${axes.xLabel}. Not beaten in both: ${best.map((p) => p.name).join(", ")}`),
    height: Math.max(320, Math.min(440, width * 0.66)),
    marginLeft: 52,
    marginRight: 34,
    marginTop: 26,
    marginBottom: 42,
    x: { type: "log", label: `${axes.xLabel} →`, tickFormat: (x: number) => (/^[125]/.test(String(Number(x.toPrecision(1)))) ? compact(x) : ""), insetLeft: 30, insetRight: 30 },
    y: { label: `${axes.lowerY ? "↓ lower is better: " : "↑ "}${axes.yLabel}`, insetTop: 18, insetBottom: 12, reverse: false, tickFormat: (y: number) => y.toFixed(2) },
    marks: [
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.ruleX(points.filter((p) => p.low !== null), { x: "x", y1: "low", y2: "high", stroke: palette.line, strokeWidth: 1.5 }),
      Plot.line(best, { x: "x", y: "y", stroke: palette.accent, strokeWidth: 2, curve: axes.lowerX ? "step-after" : "step-before" }),
      Plot.dot(others, { x: "x", y: "y", r: 4.5, fill: palette.surface, stroke: palette.line, strokeWidth: 1.5 }),
      Plot.dot(best, { x: "x", y: "y", r: 5.5, fill: palette.accent }),
      ...(few ? [label(others, 15, 400)] : []),
      label(best, -13, 600),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: describe, fill: palette.surface, stroke: palette.line })),
    ],
  }) as SVGSVGElement;
}
