// One small panel per class: the curve, what chance would give, and the area.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import type { Point } from "../curves";
import { clipped } from "./critical-difference";

export interface ClassCurve {
  name: string;
  points: Point[];
  area: number | null;
  chance: number | null; // height of the line of chance; null for the diagonal
}

export function classCurves(curves: ClassCurve[], labels: { x: string; y: string; area: string }, width: number, palette: Palette): SVGSVGElement {
  const columns = Math.max(1, Math.min(curves.length, Math.floor(width / 150), 5));
  const rows = Math.ceil(curves.length / columns);
  const panel = Math.min(width / columns, 260);
  const place = (k: number) => ({ fx: k % columns, fy: Math.floor(k / columns) });
  const flat = curves.flatMap((curve, k) => curve.points.map((point) => ({ ...point, name: curve.name, ...place(k) })));
  const titles = curves.map((curve, k) => ({ ...place(k), name: clipped(curve.name, Math.max(8, Math.floor((panel * columns - 54) / columns * 0.88 / 7.6))), area: curve.area === null ? "" : `${labels.area} ${curve.area.toFixed(3)}`, chance: curve.chance }));
  const facet = { fx: "fx", fy: "fy" };
  return Plot.plot({
    ...base(Math.round(panel * columns), palette, curves.map((curve) => `${curve.name}: ${labels.area} ${curve.area?.toFixed(3)}`).join("; ")),
    height: Math.round(rows * panel) + 50,
    marginLeft: 48,
    marginBottom: 44,
    marginTop: 24,
    marginRight: 6,
    fx: { axis: null, padding: 0.12 },
    fy: { axis: null, padding: 0.24 },
    x: { domain: [0, 1], ticks: [0, 0.5, 1], label: labels.x, labelAnchor: "center", labelOffset: 36, tickFormat: (x: number) => String(x) },
    y: { domain: [0, 1], ticks: [0, 0.5, 1], label: labels.y, labelAnchor: "center", tickFormat: (y: number) => String(y) },
    marks: [
      Plot.frame({ stroke: palette.grid }),
      Plot.line(
        titles.flatMap((t) => [{ ...t, x: 0, y: t.chance ?? 0 }, { ...t, x: 1, y: t.chance ?? 1 }]),
        { ...facet, x: "x", y: "y", z: "name", stroke: palette.line, strokeDasharray: "3,3" },
      ),
      Plot.line(flat, { ...facet, x: "x", y: "y", z: "name", stroke: palette.accent, strokeWidth: 2 }),
      Plot.text(titles, { ...facet, text: "name", frameAnchor: "top-left", dy: -15, fontWeight: 600, fill: palette.ink }),
      Plot.text(titles, { ...facet, text: "area", frameAnchor: "bottom-right", dx: -6, dy: -6, fill: palette.ink, stroke: palette.surface, strokeWidth: 4 }),
    ],
  }) as SVGSVGElement;
}
