// A figure: drawn to the width there is, in the colours of the page, and saved as for print.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { savePdf, saveSvg } from "./download";
import { PAPER, SCREEN, type Palette } from "./theme";

export type Draw = (width: number, palette: Palette) => SVGSVGElement;

/** About the width of a sheet of A4, in pixels. */
const PRINT_WIDTH = 680;

interface Props {
  title: string;
  name: string;
  draw: Draw;
  /** What the drawing depends on besides the width. */
  depends: unknown[];
  caption?: ComponentChildren;
  controls?: ComponentChildren;
  paperWidth?: number;
  level?: 2 | 3;
}

export function Chart({ title, name, draw, depends, caption, controls, paperWidth = 640, level = 2 }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (width > 0) place.current!.replaceChildren(draw(width, SCREEN));
  }, [width, ...depends]);
  useEffect(() => {
    // On paper the text of a figure has the size of other text.
    const show = (size: number) => place.current!.replaceChildren(draw(size, SCREEN));
    const before = () => show(PRINT_WIDTH);
    const after = () => width > 0 && show(width);
    addEventListener("beforeprint", before);
    addEventListener("afterprint", after);
    return () => {
      removeEventListener("beforeprint", before);
      removeEventListener("afterprint", after);
    };
  }, [width, ...depends]);
  const Heading = level === 2 ? "h2" : "h3";
  const paper = () => framed(draw(paperWidth, PAPER));
  return (
    <figure class="card figure">
      <header class="figure-head">
        <Heading>{title}</Heading>
        {controls}
        <span class="downloads">
          <button type="button" class="quiet" onClick={() => saveSvg(name, paper())} aria-label={`${title}: save as SVG`}>
            SVG
          </button>
          <button type="button" class="quiet" onClick={() => void savePdf(name, paper())} aria-label={`${title}: save as PDF`}>
            PDF
          </button>
        </span>
      </header>
      <div class="plot" ref={place} />
      {caption && <figcaption>{caption}</figcaption>}
    </figure>
  );
}

/** A white sheet behind the drawing, and a font that every program knows. */
function framed(svg: SVGSVGElement): SVGSVGElement {
  const sheet = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  sheet.setAttribute("width", svg.getAttribute("width")!);
  sheet.setAttribute("height", svg.getAttribute("height")!);
  sheet.setAttribute("fill", "#ffffff");
  svg.prepend(sheet);
  svg.style.fontFamily = "Helvetica, Arial, sans-serif";
  return svg;
}

/** Options that every plot shares: text in the theme's colour, room for labels, no HTML around the SVG. */
export function base(width: number, palette: Palette, label: string) {
  return {
    width,
    ariaLabel: label,
    style: { background: "transparent", color: palette.ink, fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
  };
}

export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const update = () => setMatches(list.matches);
    list.addEventListener("change", update);
    return () => list.removeEventListener("change", update);
  }, [query]);
  return matches;
}
