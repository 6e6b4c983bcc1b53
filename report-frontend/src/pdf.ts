// An SVG figure as PDF with real text and lines; loaded only when a PDF is asked for.
import { jsPDF } from "jspdf";
import { svg2pdf } from "svg2pdf.js";
import font from "../build/figure-font.ttf";

window.histobenchPdf = async (svg: SVGSVGElement): Promise<ArrayBuffer> => {
  const width = Number(svg.getAttribute("width"));
  const height = Number(svg.getAttribute("height"));
  const document_ = new jsPDF({ orientation: width > height ? "landscape" : "portrait", unit: "pt", format: [width * 0.75, height * 0.75], compress: true });
  document_.addFileToVFS("figure-font.ttf", font);
  for (const style of ["normal", "bold"]) document_.addFont("figure-font.ttf", "figure-font", style);
  const copy = svg.cloneNode(true) as SVGSVGElement;
  copy.setAttribute("font-family", "figure-font");
  for (const element of copy.querySelectorAll("[font-family]")) element.setAttribute("font-family", "figure-font");
  for (const element of copy.querySelectorAll("style")) element.remove();
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
  return document_.output("arraybuffer");
};
