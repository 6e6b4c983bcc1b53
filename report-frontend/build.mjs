// Builds the report's program into the Python package: no module loading, so that it runs from file:// too.
import { build } from "esbuild";
import subsetFont from "subset-font";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync, readdirSync, existsSync } from "node:fs";
import { createHash } from "node:crypto";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "src", "histobench", "report", "assets");
const shared = {
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2021"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "ascii",
  absWorkingDir: here,
  metafile: true,
};

// The font of PDF figures: European scripts and the signs of mathematics.
const ranges = [[0x20, 0x7e], [0xa0, 0x24f], [0x370, 0x3ff], [0x400, 0x45f], [0x2010, 0x2044], [0x2070, 0x20ac], [0x2190, 0x2193], [0x2200, 0x2265], [0x25a0, 0x25cf]];
const characters = ranges.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, k) => String.fromCodePoint(first + k)));
mkdirSync(join(here, "build"), { recursive: true });
const font = readFileSync(join(here, "node_modules", "dejavu-fonts-ttf", "ttf", "DejaVuSans.ttf"));
writeFileSync(join(here, "build", "figure-font.ttf"), await subsetFont(font, characters.join(""), { targetFormat: "truetype" }));

const app = await build({ ...shared, entryPoints: ["src/main.tsx"], outfile: join(out, "app.js") });
const pdf = await build({
  ...shared,
  entryPoints: ["src/pdf.ts"],
  outfile: join(out, "pdf.js"),
  loader: { ".ttf": "base64" },
  // Parts of jsPDF that draw HTML pages; figures do not need them.
  alias: { canvg: "./src/nothing.ts", html2canvas: "./src/nothing.ts", dompurify: "./src/nothing.ts" },
});
await build({ ...shared, entryPoints: ["src/app.css"], outfile: join(out, "app.css"), metafile: false });
copyFileSync(join(here, "src", "icon.svg"), join(out, "icon.svg"));
writeFileSync(join(out, "LICENSES.txt"), licences([app.metafile, pdf.metafile]));

writeFileSync(join(out, "SOURCE"), sourceDigest() + "\n");

/** What the program was built from; a test compares it, so that source and program cannot part. */
function sourceDigest() {
  const sources = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(here.length + 1).replaceAll("\\", "/"));
  const digest = createHash("sha256");
  for (const path of [...sources, "build.mjs", "package-lock.json"].sort((a, b) => (a < b ? -1 : 1))) {
    digest.update(path + "\0").update(readFileSync(join(here, path))).update("\0");
  }
  return digest.digest("hex");
}

function licences(metafiles) {
  const names = new Set(["dejavu-fonts-ttf"]);
  for (const file of metafiles.flatMap((meta) => Object.keys(meta.inputs))) {
    const match = file.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/);
    if (match) names.add(match[1]);
  }
  const parts = [...names].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^(licen[cs]e|copying)/i.test(entry));
    const text = file && existsSync(join(folder, file)) ? readFileSync(join(folder, file), "utf8").trim() : "";
    return `${name} ${about.version} (${about.license ?? "see below"})\n\n${text}`;
  });
  return `The report's program contains these libraries.\n\n${parts.join("\n\n" + "-".repeat(80) + "\n\n")}\n`;
}
