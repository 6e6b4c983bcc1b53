// A two-dimensional map of the test images' embeddings.
import { clipped } from "./charts/critical-difference";
import { useMemo, useState } from "preact/hooks";
import * as Plot from "@observablehq/plot";
import { unpack, type Packed, type Site } from "./data";
import { base, Chart } from "./chart";
import { Segments, Select, useData } from "./parts";
import type { View } from "./pages/run";
import type { Palette } from "./theme";

interface MapFile {
  image: Packed; // places in the image set
  maps: { kind: string; label: string; x: Packed; y: Packed; note: string }[];
}

interface Dot {
  x: number;
  y: number;
  image: number;
  label: number;
  wrong: boolean;
}

export function EmbeddingMap({ site, view, onOpen, name }: { site: Site; view: View; onOpen: (image: number) => void; name: string }) {
  const key = site.maps[view.run];
  const { value } = useData<MapFile>(key ? `map/${key}` : null);
  const [kind, setKind] = useState(0);
  const [shown, setShown] = useState("all");
  const dots = useMemo<Dot[]>(() => {
    if (!value) return [];
    const chosen = value.maps[Math.min(kind, value.maps.length - 1)];
    const [image, x, y] = [unpack(value.image), unpack(chosen.x), unpack(chosen.y)];
    const p = view.predictions;
    return Array.from(image, (i, k) => ({ x: x[k] / 65535, y: y[k] / 65535, image: i, label: p.labels[i], wrong: p.labels[i] !== p.predicted[i] }));
  }, [value, kind]);
  if (!value) return null;
  const chosen = value.maps[Math.min(kind, value.maps.length - 1)];
  const visible = shown === "all" ? dots : shown === "wrong" ? dots.filter((d) => d.wrong) : dots.filter((d) => d.label === Number(shown));
  return (
    <Chart
      title="Map of the embeddings"
      name={`map_${chosen.kind}_${name}`}
      depends={[visible, view.thumbs]}
      draw={(width, palette) => embeddingMap(dots, visible, view, width, palette, onOpen)}
      controls={
        <>
          {value.maps.length > 1 && <Segments label="Map" value={String(kind)} options={value.maps.map((m, k) => ({ value: String(k), label: m.label }))} onChange={(k) => setKind(Number(k))} />}
          <Select label="Show" value={shown} options={[{ value: "all", label: "all images" }, { value: "wrong", label: "mistakes" }, ...view.data.classes.map((label, k) => ({ value: String(k), label }))]} onChange={setShown} />
        </>
      }
      caption={<>{chosen.note} Crosses are mistakes. {view.thumbs && "Point at an image to see it, "}{view.thumbs ? "click to open it." : "Click a point to see what was predicted."} By keyboard: arrow keys and Enter.</>}
    />
  );
}

const SYMBOLS = ["circle", "triangle", "square", "diamond", "star", "wye"] as const;

type Shape = (typeof SYMBOLS)[number];

/** Colour and shape change with every class, so that no two of the first thirty share both. */
const shapeOf = (label: number): Shape => SYMBOLS[(label + Math.floor(label / 30)) % SYMBOLS.length];

/** The shapes in legends, about five pixels around the origin. */
const OUTLINES: Record<Shape, string> = {
  circle: "M5,0A5,5,0,1,1,-5,0A5,5,0,1,1,5,0Z",
  triangle: "M0,-6L5.2,3.5H-5.2Z",
  square: "M-4.4,-4.4H4.4V4.4H-4.4Z",
  diamond: "M0,-6.5L4,0L0,6.5L-4,0Z",
  star: "M0,-6.5L1.6,-2.1L6.2,-2L2.5,0.8L3.8,5.3L0,2.6L-3.8,5.3L-2.5,0.8L-6.2,-2L-1.6,-2.1Z",
  wye: "M-1.8,6V1.2L-5.6,-1L-3.8,-4.2L0,-2L3.8,-4.2L5.6,-1L1.8,1.2V6Z",
};

function embeddingMap(all: Dot[], visible: Dot[], view: View, width: number, palette: Palette, onOpen: (image: number) => void): SVGSVGElement {
  const { data, images, thumbs } = view;
  const colour = (d: Dot) => palette.categories[d.label % palette.categories.length];
  const symbol = (d: Dot) => shapeOf(d.label);
  const right = visible.filter((d) => !d.wrong);
  const wrong = visible.filter((d) => d.wrong);
  const present = data.classes.map((name, label) => ({ name, label })).filter(({ label }) => all.some((d) => d.label === label));
  const longest = Math.max(...present.map(({ name }) => name.length));
  const columns = Math.max(1, Math.floor(width / Math.max(90, 7.5 * longest + 30)));
  const rows = Math.ceil(present.length / columns);
  const height = Math.max(340, Math.min(620, width * 0.62));
  const pointer = (options: object) => Plot.pointer({ x: "x", y: "y", ...options });
  const svg = Plot.plot({
    ...base(width, palette, `Map of ${all.length} test images`),
    height: height + rows * 20,
    margin: 10,
    marginTop: rows * 20 + 16,
    x: { axis: null, domain: [-0.02, 1.02] },
    y: { axis: null, domain: [-0.02, 1.02] },
    marks: [
      Plot.frame({ stroke: palette.grid, rx: 6 }),
      Plot.dot(right, { x: "x", y: "y", r: 3, fill: colour, fillOpacity: 0.75, symbol }),
      Plot.dot(wrong, { x: "x", y: "y", r: 4, stroke: colour, strokeWidth: 2, symbol: "times" }),
      Plot.dot(visible, pointer({ r: 7, stroke: palette.ink, strokeWidth: 2 })),
      ...(thumbs ? [Plot.image(visible, pointer({ src: (d: Dot) => (thumbs.has(d.image) ? thumbs.address(d.image) : ""), width: 84, height: 84, dx: 56, dy: -30, preserveAspectRatio: "xMidYMid meet" }))] : []),
      Plot.tip(visible, pointer({ anchor: "top-right", fill: palette.surface, stroke: palette.line, title: (d: Dot) => `${images.names[d.image]}\nis ${data.classes[d.label]}${d.wrong ? `\npredicted ${data.classes[view.predictions.predicted[d.image]]}` : ""}` })),
      Plot.dot(present, { frameAnchor: "top-left", dx: 0, x: undefined, y: undefined, r: 0 }),
    ],
  }) as SVGSVGElement;
  legend(svg, present.map(({ name, label }) => ({ name, colour: palette.categories[label % palette.categories.length], shape: shapeOf(label) })), columns, width, palette);
  svg.addEventListener("click", () => {
    const dot = (svg as unknown as { value: Dot | null }).value;
    if (dot) onOpen(dot.image);
  });
  svg.style.cursor = "pointer";
  walkByKeys(svg, visible, onOpen);
  return svg;
}

/** With the map in focus, arrow keys go from point to point, left to right, and Enter opens the image. */
function walkByKeys(svg: SVGSVGElement & { scale?: (name: string) => { apply: (value: number) => number } | undefined }, visible: Dot[], onOpen: (image: number) => void): void {
  const order = [...visible].sort((a, b) => a.x - b.x);
  const [x, y] = [svg.scale!("x")!, svg.scale!("y")!];
  let at = -1;
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step !== undefined && order.length) {
      event.preventDefault();
      at = at < 0 && step < 0 ? order.length - 1 : (at + step + order.length) % order.length;
      const box = svg.getBoundingClientRect();
      const scale = box.width / Number(svg.getAttribute("width"));
      const place = { clientX: box.left + x.apply(order[at].x) * scale, clientY: box.top + y.apply(order[at].y) * scale, bubbles: true, pointerType: "mouse" };
      // The drawing shows what is pointed at; the keys point for the hand.
      svg.dispatchEvent(new PointerEvent("pointerenter", place));
      svg.dispatchEvent(new PointerEvent("pointermove", place));
    } else if ((event.key === "Enter" || event.key === " ") && at >= 0) {
      event.preventDefault();
      onOpen(order[at].image);
    }
  });
}

/** Names of colours above the drawing, part of the SVG so that files have them too. */
export function legend(svg: SVGSVGElement, entries: { name: string; colour: string; shape?: Shape }[], columns: number, width: number, palette: Palette): void {
  const room = width / columns;
  entries.forEach((entry, k) => {
    const group = document.createElementNS(svg.namespaceURI, "g");
    group.setAttribute("transform", `translate(${(k % columns) * room + 10},${Math.floor(k / columns) * 20 + 10})`);
    const mark = document.createElementNS(svg.namespaceURI, "path");
    mark.setAttribute("d", OUTLINES[entry.shape ?? "circle"]);
    mark.setAttribute("fill", entry.colour);
    const text = document.createElementNS(svg.namespaceURI, "text");
    text.setAttribute("x", "11");
    text.setAttribute("dy", "0.35em");
    text.setAttribute("font-size", "12");
    text.setAttribute("text-anchor", "start");
    text.setAttribute("fill", palette.ink);
    text.textContent = clipped(entry.name, Math.max(5, Math.floor(room / 7.5) - 3));
    group.append(mark, text);
    svg.append(group);
  });
}
