// Demšar's diagram: mean ranks on an axis, bars over encoders that do not differ.
import * as Plot from "@observablehq/plot";
import type { Ranking } from "../data";
import type { Palette } from "../theme";
import { base } from "../chart";

export function criticalDifference(ranking: Ranking, names: string[], width: number, palette: Palette): SVGSVGElement {
  return width < 560 ? rowLayout(ranking, names, width, palette) : classic(ranking, names, width, palette);
}

const STEP = 20;
const LETTER = 7.4;

function classic(ranking: Ranking, names: string[], width: number, palette: Palette): SVGSVGElement {
  const n = names.length;
  const ranks = ranking.ranks;
  const left = Math.ceil(n / 2);
  const bars = lanes(ranking);
  const depth = bars.length ? Math.max(...bars.map((bar) => bar.lane)) + 1 : 0;
  const top = 8 + depth * 8;
  const room = Math.max(...names.map((name) => name.length)) * LETTER + 56; // the name and its rank
  const margin = Math.min(Math.max(room, 120), width * 0.34);
  const letters = Math.floor((margin - 56) / LETTER);
  // x in ranks, y in pixels below the axis.
  const [low, high] = [Math.floor(Math.min(...ranks)), Math.ceil(Math.max(...ranks))];
  const span = Math.max(high - low, 1);
  const perRank = (width - 2 * margin) / span;
  const edge = 8 / perRank;
  const labels = names.map((name, k) => {
    const onLeft = k < left;
    const row = onLeft ? k : n - 1 - k;
    return { name, rank: ranks[k], y: top + 16 + row * STEP, x: onLeft ? low - edge : high + edge, onLeft };
  });
  const height = top + 16 + left * STEP + 68;
  const lines = labels.flatMap((label) => [
    { key: label.name, x: label.rank, y: 0 },
    { key: label.name, x: label.rank, y: label.y },
    { key: label.name, x: label.x, y: label.y },
  ]);
  const text = (onLeft: boolean) =>
    Plot.text(labels.filter((label) => label.onLeft === onLeft), {
      x: "x",
      y: "y",
      text: (d: (typeof labels)[0]) => (onLeft ? `${clipped(d.name, letters)}  ${d.rank.toFixed(2)}` : `${d.rank.toFixed(2)}  ${clipped(d.name, letters)}`),
      textAnchor: onLeft ? "end" : "start",
      dx: onLeft ? -4 : 4,
      fill: palette.ink,
      title: "name",
    });
  const critical = Math.min(ranking.criticalDifference, span);
  return Plot.plot({
    ...base(width, palette, `Critical difference diagram. ${names.map((name, k) => `${name}: mean rank ${ranks[k]}`).join("; ")}`),
    height,
    marginLeft: margin,
    marginRight: margin,
    marginTop: 64,
    marginBottom: 4,
    x: { domain: [low, high], axis: "top", label: null, ticks: Math.min(span, 10), tickFormat: "d" },
    y: { domain: [0, height - 68], axis: null, range: [64, height - 4] },
    marks: [
      Plot.ruleY([0], { stroke: palette.ink, strokeWidth: 1.2 }),
      Plot.link([{ a: low, b: low + critical }], { x1: "a", x2: "b", y1: -34, y2: -34, stroke: palette.second, strokeWidth: 3 }),
      Plot.text([`critical difference ${ranking.criticalDifference.toFixed(2)}`], { x: low, y: -34, dy: -12, textAnchor: "start", fill: palette.second, fontWeight: 600 }),
      Plot.text(["1 is first"], { frameAnchor: "top-right", dx: margin - 4, dy: -15, textAnchor: "end", fill: palette.muted }),
      Plot.line(lines, { x: "x", y: "y", z: "key", stroke: palette.line, strokeWidth: 1 }),
      Plot.link(bars, { x1: (d) => ranks[d.first] - 0.03 * span, x2: (d) => ranks[d.last] + 0.03 * span, y1: (d) => 8 + d.lane * 8, y2: (d) => 8 + d.lane * 8, stroke: palette.accent, strokeWidth: 4, strokeLinecap: "round" }),
      Plot.dot(labels, { x: "rank", y: 0, r: 3, fill: palette.ink }),
      text(true),
      text(false),
    ],
  }) as SVGSVGElement;
}

/** The same for narrow screens: one row per encoder, bars beside them. */
function rowLayout(ranking: Ranking, names: string[], width: number, palette: Palette): SVGSVGElement {
  const bars = lanes(ranking);
  const depth = bars.length ? Math.max(...bars.map((bar) => bar.lane)) + 1 : 0;
  const rows = names.map((name, k) => ({ name, rank: ranking.ranks[k], k }));
  const barRoom = 10 + depth * 9;
  const [low, high] = [Math.floor(Math.min(...ranking.ranks)), Math.ceil(Math.max(...ranking.ranks))];
  return Plot.plot({
    ...base(width, palette, `Mean ranks. ${names.map((name, k) => `${name}: ${ranking.ranks[k]}`).join("; ")}`),
    height: 44 + names.length * STEP + 16,
    marginLeft: Math.min(140, width * 0.38),
    marginRight: barRoom + 8,
    marginTop: 44,
    x: { domain: [low, high], axis: "top", label: "mean rank (1 is first)", ticks: 4 },
    y: { domain: [-0.6, names.length - 0.4], axis: null, reverse: true },
    marks: [
      Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.dot(rows, { x: "rank", y: "k", fill: palette.accent, r: 4 }),
      Plot.text(rows, { y: "k", text: (d) => clipped(d.name, Math.floor((Math.min(140, width * 0.38) - 12) / LETTER)), frameAnchor: "left", textAnchor: "end", dx: -8, fill: palette.ink }),
      ...bars.map((bar) => Plot.ruleX([high], { y1: bar.first - 0.3, y2: bar.last + 0.3, dx: 12 + bar.lane * 9, stroke: palette.accent, strokeWidth: 4, strokeLinecap: "round" })),
    ],
  }) as SVGSVGElement;
}

/** Bars that overlap go to different lanes. */
function lanes(ranking: Ranking): { first: number; last: number; lane: number }[] {
  const ends: number[] = [];
  return ranking.groups.map((group) => {
    const first = Math.min(...group);
    const last = Math.max(...group);
    let lane = ends.findIndex((end) => end < first);
    if (lane < 0) lane = ends.length;
    ends[lane] = last;
    return { first, last, lane };
  });
}

/** A long name without its middle: names of one set often begin alike. */
export function clipped(text: string, length: number): string {
  const end = Math.floor((length - 1) / 2);
  return text.length > length ? `${text.slice(0, length - 1 - end)}…${text.slice(text.length - end)}` : text;
}
