// Figures and tables as files.
import { fileName } from "./format";

export interface Table {
  name: string;
  caption: string;
  header: string[];
  rows: (string | number | null)[][];
}

export function save(name: string, content: BlobPart, type: string): void {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function saveSvg(name: string, svg: SVGSVGElement): void {
  save(`${fileName(name)}.svg`, svgText(svg), "image/svg+xml");
}

export function svgText(svg: SVGSVGElement): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("xmlns:xlink", "http://www.w3.org/1999/xlink");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

declare global {
  interface Window {
    histobenchPdf?: (svg: SVGSVGElement) => Promise<ArrayBuffer>;
  }
}

export async function savePdf(name: string, svg: SVGSVGElement): Promise<void> {
  if (!window.histobenchPdf) {
    await new Promise<void>((resolve, reject) => {
      const element = document.createElement("script");
      element.src = "assets/pdf.js";
      element.onload = () => resolve();
      element.onerror = () => reject(new Error("assets/pdf.js is missing"));
      document.head.append(element);
    });
  }
  save(`${fileName(name)}.pdf`, await window.histobenchPdf!(svg), "application/pdf");
}

export function csv(table: Table): string {
  return [table.header, ...table.rows].map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
}

function csvCell(value: string | number | null): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  // Spreadsheets run what looks like a formula; a class name must not become one.
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

const LATEX: Record<string, string> = {
  "\\": "\\textbackslash{}",
  "&": "\\&",
  "%": "\\%",
  $: "\\$",
  "#": "\\#",
  _: "\\_",
  "{": "\\{",
  "}": "\\}",
  "~": "\\textasciitilde{}",
  "^": "\\textasciicircum{}",
  "<": "\\textless{}",
  ">": "\\textgreater{}",
  "−": "$-$",
  "–": "--",
};

export function latexText(text: string): string {
  return text.replace(/[\\&%$#_{}~^<>−–]/g, (character) => LATEX[character]);
}

export function latex(table: Table): string {
  const numeric = table.header.map((_, k) => table.rows.some((row) => typeof row[k] === "number"));
  const line = (row: (string | number | null)[]) =>
    row.map((value) => (value === null ? "--" : typeof value === "number" ? latexNumber(value) : latexText(value))).join(" & ") + " \\\\";
  return [
    "% needs \\usepackage{booktabs}",
    "\\begin{table}",
    "\\centering",
    `\\caption{${latexText(table.caption)}}`,
    `\\begin{tabular}{${numeric.map((right) => (right ? "r" : "l")).join("")}}`,
    "\\toprule",
    line(table.header),
    "\\midrule",
    ...table.rows.map(line),
    "\\bottomrule",
    "\\end{tabular}",
    "\\end{table}",
    "",
  ].join("\n");
}

function latexNumber(value: number): string {
  const text = Number.isInteger(value) ? String(value) : value.toFixed(3);
  return value < 0 ? `$-$${text.slice(1)}` : text;
}
