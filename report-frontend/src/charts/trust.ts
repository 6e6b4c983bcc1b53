// Trust in a tool: how often its answer is given when it is right, and when it is wrong; and what coverage costs in errors.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import { clipped } from "./critical-difference";
import { placeLabels } from "./labels";

/** Confidence, number of cases, acceptance with its interval. */
export type RelianceBin = [confidence: number, cases: number, accepted: number | null, low: number | null, high: number | null];

const share = (y: number) => `${Math.round(100 * y)}%`;

export function reliance(right: RelianceBin[], wrong: RelianceBin[], width: number, palette: Palette): SVGSVGElement {
  const point = (kind: string) => ([x, n, y, low, high]: RelianceBin) => ({ kind, x, n, y: y!, low, high });
  const points = [...right.map(point("tool right")), ...wrong.map(point("tool wrong"))].filter((p) => p.y !== null);
  type P = (typeof points)[number];
  const colour = (p: { kind: string }) => (p.kind === "tool right" ? palette.accent : palette.second);
  const most = Math.max(...points.map((p) => p.n), 1);
  return Plot.plot({
    ...base(width, palette, points.map((p) => `${p.kind}, stated confidence ${p.x.toFixed(2)}: same answer in ${share(p.y)} of ${p.n} cases`).join("; ")),
    height: Math.max(290, Math.min(380, width * 0.7)),
    marginLeft: 50,
    marginRight: 20,
    marginTop: 44,
    marginBottom: 46,
    x: { domain: [0, 1], label: "confidence that the tool states", labelAnchor: "center", labelOffset: 38, ticks: 5, insetLeft: 6, insetRight: 6 },
    y: { domain: [0, 1], label: null, ticks: 5, tickFormat: share, insetTop: 6, insetBottom: 6 },
    r: { type: "identity" },
    marks: [
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.ruleX(points.filter((p) => p.low !== null), { x: "x", y1: "low", y2: "high", stroke: colour, strokeWidth: 2, strokeOpacity: 0.45 }),
      Plot.line(points, { x: "x", y: "y", z: "kind", stroke: colour, strokeWidth: 2, sort: "x" }),
      Plot.dot(points, { x: "x", y: "y", fill: colour, symbol: (p: P) => (p.kind === "tool right" ? "circle" : "square"), r: (p: P) => 3.5 + 4 * Math.sqrt(p.n / most), stroke: palette.surface, strokeWidth: 1 }),
      Plot.text(["↑ agent gives the tool’s answer"], { frameAnchor: "top-left", textAnchor: "start", dx: -44, dy: -36, fill: palette.ink }),
      Plot.text(["● tool right"], { frameAnchor: "top-left", textAnchor: "start", dx: -44, dy: -18, fill: palette.accent, fontWeight: 600 }),
      Plot.text(["■ tool wrong"], { frameAnchor: "top-left", textAnchor: "start", dx: 60, dy: -18, fill: palette.second, fontWeight: 600 }),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", fill: palette.surface, stroke: palette.line, title: (p: P) => `${p.kind}\nstated confidence ${p.x.toFixed(2)}\nsame answer in ${(100 * p.y).toFixed(1)}%${p.low === null ? "" : ` (${(100 * p.low).toFixed(0)} to ${(100 * p.high!).toFixed(0)}%)`}\n${p.n} cases` })),
    ],
  }) as SVGSVGElement;
}

export interface TrustPoint {
  name: string;
  right: number;
  wrong: number;
  rightRange: [number | null, number | null];
  wrongRange: [number | null, number | null];
  strong: boolean;
}

/** Over-reliance to the right, missed help below: the upper left corner is an agent that knows when to trust. */
export function trustPlane(points: TrustPoint[], width: number, palette: Palette): SVGSVGElement {
  const side = Math.min(width, 560);
  // Agents at the same spot share one name.
  const spots = new Map<string, TrustPoint[]>();
  for (const p of points) {
    const key = `${p.wrong.toFixed(2)} ${p.right.toFixed(2)}`;
    spots.set(key, [...(spots.get(key) ?? []), p]);
  }
  const draw = (labels: Plot.Markish[]) =>
    Plot.plot({
    ...base(side, palette, points.map((p) => `${p.name}: same answer as a right tool in ${share(p.right)}, as a wrong one in ${share(p.wrong)}`).join("; ")),
    height: side * 0.86,
    marginLeft: 50,
    marginRight: 22,
    marginTop: 30,
    marginBottom: 46,
    x: { domain: [0, 1], label: "over-reliance: same answer as a wrong tool", labelAnchor: "center", labelOffset: 38, ticks: 5, tickFormat: share, insetLeft: 8, insetRight: 8 },
    y: { domain: [0, 1], label: null, ticks: 5, tickFormat: share, insetTop: 8, insetBottom: 8 },
    marks: [
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.line([[0, 0], [1, 1]], { stroke: palette.line, strokeDasharray: "4,4" }),
      Plot.link(points.filter((p) => p.rightRange[0] !== null), { x1: "wrong", x2: "wrong", y1: (p: TrustPoint) => p.rightRange[0], y2: (p: TrustPoint) => p.rightRange[1], stroke: palette.line, strokeWidth: 1.4, strokeOpacity: 0.7 }),
      Plot.link(points.filter((p) => p.wrongRange[0] !== null), { x1: (p: TrustPoint) => p.wrongRange[0], x2: (p: TrustPoint) => p.wrongRange[1], y1: "right", y2: "right", stroke: palette.line, strokeWidth: 1.4, strokeOpacity: 0.7 }),
      Plot.dot(points, { x: "wrong", y: "right", r: 5.5, fill: (p: TrustPoint) => (p.strong ? palette.accent : palette.surface), stroke: (p: TrustPoint) => (p.strong ? palette.accent : palette.line), strokeWidth: 1.8 }),
      ...labels,
      Plot.text(["↑ same answer as a right tool"], { frameAnchor: "top-left", textAnchor: "start", dx: -44, dy: -20, fill: palette.ink }),
      Plot.tip(points, Plot.pointer({ x: "wrong", y: "right", fill: palette.surface, stroke: palette.line, title: (p: TrustPoint) => `${p.name}\nsame answer as a right tool ${(100 * p.right).toFixed(1)}%\nsame answer as a wrong tool ${(100 * p.wrong).toFixed(1)}%\ntells right from wrong: ${(p.right - p.wrong).toFixed(3)}` })),
    ],
  });
  const bare = draw([]);
  const at = (p: TrustPoint) => ({ x: bare.scale("x")!.apply(p.wrong) as number, y: bare.scale("y")!.apply(p.right) as number });
  const named = [...spots.values()].map((members) => ({ point: members[0], ...at(members[0]), text: clipped(members.map((p) => p.name).join(", "), 30) }));
  const marks = placeLabels(named.sort((a, b) => Number(b.point.strong) - Number(a.point.strong)), side).map(({ point, side: place, text }) =>
    Plot.text([point], { x: "wrong", y: "right", text: () => text, dx: place.dx, dy: place.dy, textAnchor: place.anchor, fill: palette.ink, stroke: palette.surface, strokeWidth: 4, fontWeight: point.strong ? 650 : 400 }),
  );
  return draw(marks) as SVGSVGElement;
}

export interface RiskCurve {
  name: string;
  points: [coverage: number, risk: number][];
  /** The share that was answered: beyond it are deferred and unanswered cases. */
  answered: number;
}

export function riskCoverage(curves: RiskCurve[], width: number, palette: Palette): SVGSVGElement {
  const points = curves.flatMap((curve, k) => curve.points.map(([x, y]) => ({ x, y, k, name: curve.name, tail: x > curve.answered + 1e-9 })));
  type P = (typeof points)[number];
  const colour = (p: { k: number }) => palette.categories[p.k % palette.categories.length];
  const body = points.filter((p) => !p.tail);
  const tails = curves.flatMap((_, k) => {
    const inside = points.filter((p) => p.k === k && !p.tail);
    const outside = points.filter((p) => p.k === k && p.tail);
    return outside.length ? [...inside.slice(-1), ...outside] : [];
  });
  const ends = curves.map((_, k) => body.filter((p) => p.k === k).pop() ?? points.find((p) => p.k === k)!);
  const top = 38 + 18 * curves.length;
  return Plot.plot({
    ...base(width, palette, curves.map((curve) => `${curve.name}: ${share(curve.points[curve.points.length - 1]?.[1] ?? 0)} wrong at full coverage`).join("; ")),
    height: Math.max(280, Math.min(360, width * 0.62)) + top - 38,
    marginLeft: 50,
    marginRight: 20,
    marginTop: top,
    marginBottom: 46,
    x: { domain: [0, 1], label: "coverage: share of cases answered, surest first", labelAnchor: "center", labelOffset: 38, ticks: 5, tickFormat: share },
    y: { label: null, nice: true, zero: true, ticks: 5, tickFormat: share },
    marks: [
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.line(body, { x: "x", y: "y", z: "k", stroke: colour, strokeWidth: 2 }),
      Plot.line(tails, { x: "x", y: "y", z: "k", stroke: colour, strokeWidth: 1.6, strokeDasharray: "3,4" }),
      Plot.dot(ends, { x: "x", y: "y", r: 4.5, fill: colour, stroke: palette.surface }),
      ...curves.map((curve, k) => Plot.text([`● ${clipped(curve.name, Math.floor((width - 30) / 7.6))}`], { frameAnchor: "top-left", textAnchor: "start", dx: -44, dy: 18 * k + 10 - top, fill: colour({ k }), fontWeight: 600 })),
      Plot.text(["↑ share that is wrong"], { frameAnchor: "top-left", textAnchor: "start", dx: -44, dy: -18, fill: palette.ink }),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", fill: palette.surface, stroke: palette.line, title: (p: P) => `${p.name}\n${(100 * p.y).toFixed(1)}% wrong among the surest ${(100 * p.x).toFixed(0)}%${p.tail ? "\n(deferred and unanswered cases count as wrong)" : ""}` })),
    ],
  }) as SVGSVGElement;
}
