// What an encoder gives against what it costs, and which encoders no other beats in both.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { compact } from "../format";
import { chanceLine } from "../chance";
import { clipped } from "./critical-difference";
import { placeLabels, SIDES } from "./labels";

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
  chance?: number | null;
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
  const describe = (p: CostPoint) => `${p.name}\n${axes.yLabel} ${p.y.toFixed(3)}\n${axes.xLabel} ${compact(p.x)}`;
  // Ticks of the log scale: 1, 2 and 5, or only powers of ten where there are many; the ends where there are none.
  const decades = Math.log10(Math.max(...points.map((p) => p.x)) / Math.min(...points.map((p) => p.x)));
  const [least, most] = [Math.min(...points.map((p) => p.x)), Math.max(...points.map((p) => p.x))];
  // The scale labels 5 only where there are few decades, so that there are no ticks without labels.
  const steps = decades >= Math.min(5, width / 160) ? [1] : decades < 2 ? [1, 2, 5] : [1, 2];
  const exponents = Array.from({ length: Math.ceil(decades) + 2 }, (_, k) => Math.floor(Math.log10(least)) + k);
  const round = exponents.flatMap((e) => steps.map((step) => step * 10 ** e)).filter((x) => x >= least && x <= most);
  const ticks = round.length > 1 ? round : [...new Set([least, most])];
  const heights = points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]);
  const digits = Math.max(2, Math.ceil(-Math.log10((Math.max(...heights) - Math.min(...heights)) / 7 || 1)));
  const draw = (labels: Plot.Markish[]) =>
    Plot.plot({
    ...base(width, palette, `${axes.yLabel} against ${axes.xLabel}. Not beaten in both: ${best.map((p) => p.name).join(", ")}`),
    height: Math.max(320, Math.min(440, width * 0.66)),
    marginLeft: 52,
    marginRight: 34,
    marginTop: 26,
    marginBottom: 46,
    x: { type: "log", label: `${axes.xLabel} (log scale)`, labelAnchor: "center", labelOffset: 38, ticks, tickFormat: compact, insetLeft: 30, insetRight: 30 },
    y: { label: `${axes.lowerY ? "↓ lower is better: " : "↑ "}${axes.yLabel}`, insetTop: 18, insetBottom: 12, ticks: 7, tickFormat: (y: number) => y.toFixed(digits) },
    marks: [
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.gridX(ticks, { stroke: palette.grid, strokeOpacity: 1 }),
      ...chanceLine(axes.chance, heights, "y", palette),
      Plot.ruleX(points.filter((p) => p.low !== null), { x: "x", y1: "low", y2: "high", stroke: palette.line, strokeWidth: 1.5 }),
      Plot.line(best, { x: "x", y: "y", stroke: palette.accent, strokeWidth: 2, curve: axes.lowerX ? "step-after" : "step-before" }),
      Plot.dot(others, { x: "x", y: "y", r: 4.5, fill: palette.surface, stroke: palette.line, strokeWidth: 1.5 }),
      Plot.dot(best, { x: "x", y: "y", r: 5.5, fill: palette.accent }),
      ...labels,
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: describe, fill: palette.surface, stroke: palette.line })),
    ],
  });
  const bare = draw([]);
  const at = (p: CostPoint) => ({ x: bare.scale("x")!.apply(p.x) as number, y: bare.scale("y")!.apply(p.y) as number });
  const placed = placeLabels([...[...best].reverse(), ...others].map((p) => ({ point: p, ...at(p), text: clipped(p.name, 20) })), width);
  const marks = SIDES.flatMap((side) =>
    [true, false].map((strong) =>
      Plot.text(placed.filter((l) => l.side === side && best.includes(l.point) === strong).map((l) => l.point), {
        x: "x",
        y: "y",
        text: (d: CostPoint) => clipped(d.name, 20),
        dx: side.dx,
        dy: side.dy,
        textAnchor: side.anchor,
        fill: palette.ink,
        stroke: palette.surface,
        strokeWidth: 4,
        fontWeight: strong ? 600 : 400,
      }),
    ),
  );
  return draw(marks) as SVGSVGElement;
}
