// An SVG figure as PDF with real text and lines; loaded only when a PDF is asked for.
import { jsPDF } from "jspdf";
import { svg2pdf } from "svg2pdf.js";
import font from "../build/figure-font.ttf";

window.histobenchPdf = async (svg: SVGSVGElement): Promise<ArrayBuffer> => {
  const width = Number(svg.getAttribute("width"));
  const height = Number(svg.getAttribute("height"));
  const document_ = new jsPDF({ orientation: width > height ? "landscape" : "portrait", unit: "pt", format: [width * 0.75, height * 0.75], compress: true, putOnlyUsedFonts: true });
  document_.addFileToVFS("figure-font.ttf", font);
  for (const style of ["normal", "bold"]) document_.addFont("figure-font.ttf", "figure-font", style);
  const copy = svg.cloneNode(true) as SVGSVGElement;
  copy.setAttribute("font-family", "figure-font");
  for (const element of copy.querySelectorAll("[font-family]")) element.setAttribute("font-family", "figure-font");
  copy.style.fontFamily = "figure-font";
  for (const element of copy.querySelectorAll("style")) element.remove();
  // One weight is embedded; any other than these two would fall back to another font.
  for (const element of copy.querySelectorAll("[font-weight]")) element.setAttribute("font-weight", Number(element.getAttribute("font-weight")) > 500 ? "bold" : "normal");
  for (const element of copy.querySelectorAll("[paint-order=stroke]")) haloFirst(element);
  // Measured by the browser, so it has to be part of the page.
  const stage = document.createElement("div");
  stage.style.cssText = "position:absolute;left:-99999px;top:0";
  stage.append(copy);
  document.body.append(stage);
  try {
    await svg2pdf(copy, document_, { x: 0, y: 0, width: width * 0.75, height: height * 0.75 });
  } finally {
    stage.remove();
  }
  return withPlainOrdering(document_.output("arraybuffer"));
};

/** PDF knows no paint order: the halo of a text becomes a text of its own, behind it. */
function haloFirst(element: Element): void {
  const halo = element.cloneNode(true) as Element;
  halo.setAttribute("fill", element.getAttribute("stroke")!);
  element.before(halo);
  element.removeAttribute("stroke");
  element.removeAttribute("paint-order");
  element.setAttribute("stroke", "none");
}

/** jsPDF names the character collection of its fonts Identity-H; readers know it as Identity. Same length, so that no offset moves. */
function withPlainOrdering(file: ArrayBuffer): ArrayBuffer {
  const bytes = new Uint8Array(file);
  const [wrong, right] = ["(Identity-H)", "(Identity)  "].map((text) => new TextEncoder().encode(text));
  for (let at = 0; at + wrong.length <= bytes.length; at++) {
    if (bytes[at] === wrong[0] && wrong.every((byte, k) => bytes[at + k] === byte)) bytes.set(right, at);
  }
  return file;
}
