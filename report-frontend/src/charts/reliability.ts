// How often the classifier is right when it says that it is sure.
import * as Plot from "@observablehq/plot";
import type { Palette } from "../theme";
import { base } from "../chart";
import type { Bin } from "../curves";

export function reliability(bins: Bin[], width: number, palette: Palette): SVGSVGElement {
  const most = Math.max(...bins.map((bin) => bin.images));
  const side = Math.min(width, 460);
  return Plot.plot({
    ...base(side, palette, bins.map((bin) => `confidence ${bin.confidence.toFixed(2)}: ${(100 * bin.accuracy).toFixed(0)}% right of ${bin.images}`).join("; ")),
    height: side * 0.86,
    marginLeft: 48,
    marginBottom: 46,
    marginTop: 20,
    x: { domain: [0, 1], label: "stated confidence", labelAnchor: "center", labelOffset: 38, ticks: 5 },
    y: { domain: [0, 1], label: "share that is right", labelAnchor: "center", ticks: 5 },
    marks: [
      Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
      Plot.rectY(bins, { x1: "low", x2: "high", y: (bin: Bin) => (0.16 * bin.images) / most, fill: palette.tint }),
      Plot.line([[0, 0], [1, 1]], { stroke: palette.line, strokeDasharray: "4,4" }),
      Plot.link(bins, { x1: "confidence", x2: "confidence", y1: "confidence", y2: "accuracy", stroke: palette.second, strokeWidth: 2.5 }),
      Plot.line(bins, { x: "confidence", y: "accuracy", stroke: palette.accent, strokeWidth: 1.5 }),
      Plot.dot(bins, { x: "confidence", y: "accuracy", fill: palette.accent, r: 4, stroke: palette.surface }),
      Plot.tip(bins, Plot.pointer({ x: "confidence", y: "accuracy", fill: palette.surface, stroke: palette.line, title: (bin: Bin) => `confidence ${bin.confidence.toFixed(3)}\nright ${(100 * bin.accuracy).toFixed(1)}%\n${bin.images} images` })),
    ],
  }) as SVGSVGElement;
}
