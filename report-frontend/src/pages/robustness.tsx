// Robustness: the tissue or the site? Each measure with its interval, accuracy against robustness, site by site,
// under stress, and the images whose site outweighs their tissue.
import { useMemo, useState } from "preact/hooks";
import * as Plot from "@observablehq/plot";
import type { Site } from "../data";
import { count, decimals, percent } from "../format";
import { base, Chart } from "../chart";
import { clipped } from "../charts/critical-difference";
import { intervalRows, type Heading, type IntervalRow } from "../charts/intervals";
import { placeLabels } from "../charts/labels";
import { learningCurve, type CurvePoint } from "../charts/learning-curve";
import { Loading, Notice, Segments, Select, TableDownloads, useData } from "../parts";
import { href, replaceQuery, type Route } from "../route";
import type { Palette } from "../theme";

type Value = [number | null, number | null, number | null];

interface Measure {
  name: string;
  label: string;
  lower: boolean;
  values: Value[];
}

export interface RobustnessData {
  column: string;
  encoders: string[];
  images: number;
  groups: number;
  sites: Record<string, number>;
  confounding: number | null;
  caveats: string[];
  measures: Measure[];
}

interface Shown {
  label: string;
  site: string;
  distance: number | null;
  picture: string;
  name: string;
}

interface Table extends RobustnessData {
  dataset: string;
  perSite: Record<string, { site: string; images: number; values: Value[] }[]>;
  worst: Record<string, { margin: number; image: Shown; same_site: Shown; same_class: Shown }[]>;
}

interface Change {
  name: string;
  family: string;
  strength: number;
  accuracy_drop: Value;
  flip_rate: Value;
  cosine: Value;
}

interface Stress {
  dataset: string;
  encoder: string;
  images: number;
  groups: number;
  clean: number;
  changes: Change[];
}

interface PageData {
  tables: Table[];
  stress: Stress[];
}

export function RobustnessPage({ site, route }: { site: Site; route: Route }) {
  const { value: data, error } = useData<PageData>(site.robustness ? "robustness" : null);
  if (!site.robustness) return <Notice kind="problem">This report has no robustness. <a href={href("")}>Go to the start</a></Notice>;
  if (!data) return <Loading error={error} />;
  const datasets = [...new Set([...data.tables.map((table) => table.dataset), ...data.stress.map((each) => each.dataset)])];
  const dataset = datasets.includes(route.query.get("dataset") ?? "") ? route.query.get("dataset")! : datasets[0];
  const tables = data.tables.filter((table) => table.dataset === dataset);
  const table = tables.find((each) => each.column === route.query.get("by")) ?? tables[0];
  const stress = data.stress.filter((each) => each.dataset === dataset);
  return (
    <>
      <div class="title">
        <h1>Robustness</h1>
        <p class="lead">Does the encoder see the tissue, or the hospital, scanner and stain it comes from?</p>
      </div>
      {(datasets.length > 1 || tables.length > 1) && (
        <section class="card toolbar" aria-label="What is shown">
          {datasets.length > 1 && <Select label="Dataset" value={dataset} options={datasets.map((name) => ({ value: name, label: name }))} onChange={(name) => replaceQuery(route, { dataset: name })} />}
          {tables.length > 1 && <Select label="Site column" value={table.column} options={tables.map((each) => ({ value: each.column, label: byWords(each.column) }))} onChange={(by) => replaceQuery(route, { by })} />}
        </section>
      )}
      {table && <Measures key={`${dataset} ${table.column}`} table={table} name={dataset} />}
      {table && <PerSite table={table} />}
      {stress.length > 0 && <StressCurves stress={stress} />}
      {table && <Worst table={table} />}
      {stress.length > 0 && <Invariance stress={stress} />}
    </>
  );
}

/** The column of registered pairs: images of the same place. It is no site. */
const PAIRS = "pair";
const byWords = (column: string) => (column === PAIRS ? "registered pairs" : column);

/** The robustness of a dataset's encoders on its own page. */
export function Robustness({ tables, name }: { tables: RobustnessData[]; name: string }) {
  const [place, setPlace] = useState(0);
  return (
    <Measures
      table={tables[place]}
      name={name}
      controls={<Select label="Site" value={String(place)} options={tables.map((t, k) => ({ value: String(k), label: byWords(t.column) }))} onChange={(k) => setPlace(Number(k))} />}
      more
    />
  );
}

function Measures({ table, name, controls, more = false }: { table: RobustnessData; name: string; controls?: preact.ComponentChildren; more?: boolean }) {
  const [chosen, setMeasure] = useState(table.measures[0]?.name ?? "");
  const measure = table.measures.find((m) => m.name === chosen) ?? table.measures[0];
  const rows = useMemo<IntervalRow[]>(
    () =>
      (measure?.values ?? [])
        .flatMap(([value, low, high], k) => (value === null ? [] : [{ name: table.encoders[k], value, low, high, strong: true }]))
        .sort((a, b) => (measure.lower ? a.value - b.value : b.value - a.value)),
    [table, measure],
  );
  const caveats = table.caveats.length > 0 && <Notice kind="warning">Robustness by {byWords(table.column)}: {table.caveats.join("; ")}.</Notice>;
  if (!measure)
    return (
      <>
        {controls && <section class="card toolbar">{controls}</section>}
        {caveats}
      </>
    );
  const paired = table.column === PAIRS;
  return (
    <>
      {caveats}
      <div class="columns">
        <Against table={table} name={name} />
        <Chart
          title={paired ? "The same place, scanned or stained otherwise" : "Tissue or site?"}
          name={`robustness_${name}_${table.column}_${measure.name}`}
          depends={[rows]}
          draw={(width, palette) => intervalRows(rows, { label: `${measure.label}${measure.lower ? " (lower is better)" : ""}` }, width, palette)}
          controls={
            <>
              {controls}
              <Select label="Measure" value={measure.name} options={table.measures.map((m) => ({ value: m.name, label: m.label }))} onChange={setMeasure} />
            </>
          }
          caption={
            <>
              {count(table.images, "image")} of {count(table.groups, "group")} {paired ? "in" : "from"} {count(Object.keys(table.sites).length, paired ? "view" : "site")}, all splits together.{" "}
              {paired && "Each value is the median over pairs of views of the mean over the places that both show. A high cosine alone may be an encoder to which everything looks alike. "}
              Bars are 95% intervals over groups.
              {table.confounding !== null && ` Association of label and ${table.column}: Cramér’s V ${table.confounding.toFixed(2)} (0: none, 1: complete).`}
              {more && <> <a href={href("robustness", [], { dataset: name, by: table.column })}>Site by site, under stress, and the worst images</a></>}
            </>
          }
        />
      </div>
    </>
  );
}

const ACROSS = [
  { value: "robustness_index", label: "Robustness index" },
  { value: "croma_median", label: "Cross-site margin" },
  { value: "site_probe_auroc", label: "Site probe" },
];
const UP = [
  { value: "new_site_linear_probe_mean", label: "linear probe, new site" },
  { value: "new_site_linear_probe_worst", label: "linear probe, worst site" },
  { value: "new_site_knn_mean", label: "KNN, new site" },
];

interface Point {
  name: string;
  x: number;
  y: number;
  xs: Value;
  ys: Value;
}

function Against({ table, name }: { table: RobustnessData; name: string }) {
  const of = (measure: string) => table.measures.find((m) => m.name === measure);
  const across = ACROSS.filter((each) => of(each.value));
  const up = UP.filter((each) => of(each.value));
  const [x, setX] = useState(across[0]?.value);
  const [y, setY] = useState(up[0]?.value);
  const points = useMemo<Point[]>(
    () =>
      table.encoders.flatMap((encoder, k) => {
        const [a, b] = [of(x)?.values[k], of(y)?.values[k]];
        return a && b && a[0] !== null && b[0] !== null ? [{ name: encoder, x: a[0], y: b[0], xs: a, ys: b }] : [];
      }),
    [table, x, y],
  );
  if (!points.length) return null;
  const horizontal = of(x)!;
  return (
    <Chart
      title="Accuracy against robustness"
      name={`accuracy-robustness_${name}_${table.column}`}
      depends={[points]}
      draw={(width, palette) => scatter(points, `${horizontal.label}${horizontal.lower ? " (lower is better)" : ""}`, of(y)!.label, width, palette)}
      controls={
        <>
          <Select label="Across" value={x} options={across} onChange={setX} />
          <Select label="Up" value={y} options={up} onChange={setY} />
        </>
      }
      caption={`${horizontal.lower ? "Left" : "Right"}: features go by the tissue, not by the ${table.column}. Up: right at a ${table.column} that was not trained on (balanced accuracy). Lines are 95% intervals over groups.`}
    />
  );
}

function scatter(points: Point[], xLabel: string, yLabel: string, width: number, palette: Palette): SVGSVGElement {
  const draw = (labels: Plot.Markish[]) =>
    Plot.plot({
      ...base(width, palette, points.map((p) => `${p.name}: ${p.x.toFixed(3)}, ${p.y.toFixed(3)}`).join("; ")),
      height: Math.max(300, Math.min(400, width * 0.66)),
      marginLeft: 52,
      marginRight: 26,
      marginTop: 32,
      marginBottom: 46,
      x: { label: xLabel, labelAnchor: "center", labelOffset: 38, nice: true, ticks: Math.max(3, Math.min(7, width / 90)), insetLeft: 24, insetRight: 24 },
      y: { label: null, nice: true, ticks: 6, insetTop: 16, insetBottom: 16 },
      marks: [
        Plot.gridX({ stroke: palette.grid, strokeOpacity: 1 }),
        Plot.gridY({ stroke: palette.grid, strokeOpacity: 1 }),
        Plot.link(points.filter((p) => p.xs[1] !== null), { x1: (p: Point) => p.xs[1], x2: (p: Point) => p.xs[2], y1: "y", y2: "y", stroke: palette.line, strokeWidth: 1.4 }),
        Plot.link(points.filter((p) => p.ys[1] !== null), { y1: (p: Point) => p.ys[1], y2: (p: Point) => p.ys[2], x1: "x", x2: "x", stroke: palette.line, strokeWidth: 1.4 }),
        Plot.dot(points, { x: "x", y: "y", r: 5.5, fill: palette.accent, stroke: palette.surface }),
        ...labels,
        Plot.text([`↑ ${yLabel}`], { frameAnchor: "top-left", textAnchor: "start", dx: -46, dy: -22, fill: palette.ink }),
        Plot.tip(points, Plot.pointer({ x: "x", y: "y", fill: palette.surface, stroke: palette.line, title: (p: Point) => `${p.name}\n${xLabel} ${p.x.toFixed(3)}\n${yLabel} ${p.y.toFixed(3)}` })),
      ],
    });
  const bare = draw([]);
  const at = (p: Point) => ({ x: bare.scale("x")!.apply(p.x) as number, y: bare.scale("y")!.apply(p.y) as number });
  const marks = placeLabels(points.map((p) => ({ point: p, ...at(p), text: clipped(p.name, 22) })), width).map(({ point, side, text }) =>
    Plot.text([point], { x: "x", y: "y", text: () => text, dx: side.dx, dy: side.dy, textAnchor: side.anchor, fill: palette.ink, stroke: palette.surface, strokeWidth: 4, fontWeight: 600 }),
  );
  return draw(marks) as SVGSVGElement;
}

const PROTOCOLS: Record<string, string> = { linear_probe: "Linear probe", knn: "KNN", prototype: "Prototypes" };

function PerSite({ table }: { table: Table }) {
  const protocols = Object.keys(table.perSite);
  const [chosen, setProtocol] = useState(protocols[0] ?? "");
  const protocol = protocols.includes(chosen) ? chosen : protocols[0];
  const rows = useMemo<(IntervalRow | Heading)[]>(
    () =>
      (table.perSite[protocol] ?? []).flatMap((each) => [
        { heading: `${each.site} (${count(each.images, "image")})` },
        ...each.values
          .flatMap(([value, low, high], k): IntervalRow[] => (value === null ? [] : [{ name: table.encoders[k], value, low, high, strong: true }]))
          .sort((a, b) => b.value - a.value),
      ]),
    [table, protocol],
  );
  if (!rows.length) return null;
  return (
    <Chart
      title={`At a ${table.column} that was not trained on`}
      name={`per-site_${table.dataset}_${table.column}_${protocol}`}
      depends={[rows]}
      draw={(width, palette) => intervalRows(rows, { label: "balanced accuracy" }, width, palette)}
      controls={protocols.length > 1 ? <Segments label="Protocol" value={protocol} options={protocols.map((name) => ({ value: name, label: PROTOCOLS[name] ?? name }))} onChange={setProtocol} /> : undefined}
      caption={`Each ${table.column} in turn is left out of training and tested on. Bars are 95% intervals over groups.`}
    />
  );
}

const STRESSED = [
  { value: "accuracy_drop", label: "accuracy lost" },
  { value: "flip_rate", label: "changed predictions" },
  { value: "cosine", label: "cosine" },
] as const;
const FAMILIES: Record<string, string> = { hed: "stain strength", macenko: "stain colors (Macenko)", jpeg: "JPEG compression", blur: "blur", brightness: "brightness", larger: "larger magnification", smaller: "smaller magnification", attack: "attack on the linear probe" };
const THUNDER = "thunder";

function StressCurves({ stress }: { stress: Stress[] }) {
  const graded = (change: Change) => change.family !== THUNDER && !change.name.startsWith(THUNDER) && change.strength > 0;
  const families = [...new Set(stress.flatMap((each) => each.changes.filter(graded).map((change) => change.family)))];
  const [family, setFamily] = useState(families[0]);
  const [measure, setMeasure] = useState<(typeof STRESSED)[number]["value"]>("accuracy_drop");
  const points = useMemo<CurvePoint[]>(
    () =>
      stress.flatMap((each) => [
        { name: each.encoder, x: 0, y: measure === "cosine" ? 1 : 0, low: null, high: null },
        ...each.changes
          .filter((change) => graded(change) && change.family === family && change[measure][0] !== null)
          .map((change) => ({ name: each.encoder, x: change.strength, y: change[measure][0]!, low: change[measure][1], high: change[measure][2] })),
      ]),
    [stress, family, measure],
  );
  if (!families.length) return null;
  const names = [...new Set(points.map((p) => p.name))];
  const label = STRESSED.find((each) => each.value === measure)!.label;
  return (
    <Chart
      title={`Under stress: ${FAMILIES[family] ?? family}`}
      name={`stress_${stress[0].dataset}_${family}_${measure}`}
      depends={[points]}
      draw={(width, palette) => learningCurve(points, names, { xLabel: "strength of the change", yLabel: label, format: String, linear: true, percent: measure !== "cosine" }, width, palette)}
      controls={
        <>
          <Select label="Change" value={family} options={families.map((name) => ({ value: name, label: FAMILIES[name] ?? name }))} onChange={setFamily} />
          <Select label="Measure" value={measure} options={STRESSED.map(({ value, label: words }) => ({ value, label: words }))} onChange={(value) => setMeasure(value as typeof measure)} />
        </>
      }
      caption={`${count(stress[0].images, "test image")} of ${count(stress[0].groups, "group")}, changed at three strengths and compared with themselves; the linear probe was trained on unchanged images. Bands are 95% intervals over groups.`}
    />
  );
}

function Invariance({ stress }: { stress: Stress[] }) {
  const names = [...new Set(stress.flatMap((each) => each.changes.map((change) => change.name)))];
  const of = (each: Stress, name: string) => each.changes.find((change) => change.name === name);
  const worst = (name: string) => Math.max(...stress.map((each) => of(each, name)?.accuracy_drop[0] ?? -1));
  const sorted = names.sort((a, b) => worst(b) - worst(a));
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Every change</h2>
        <TableDownloads
          table={() => ({
            name: `stress_${stress[0].dataset}`,
            caption: "Accuracy lost, changed predictions and cosine of changed images, with 95% intervals.",
            header: ["encoder", "change", ...STRESSED.flatMap(({ label }) => [label, `${label} low`, `${label} high`])],
            rows: stress.flatMap((each) => each.changes.map((change) => [each.encoder, change.name, ...STRESSED.flatMap(({ value }) => change[value])])),
          })}
        />
      </header>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">Change</th>
              {stress.map((each) => (
                <th scope="col" class="number">{each.encoder} <small>lost / cosine</small></th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.map((name) => (
              <tr key={name}>
                <th scope="row">{name.replace(/_/g, " ")}</th>
                {stress.map((each) => {
                  const change = of(each, name);
                  return <td class="number">{change ? `${percent(change.accuracy_drop[0] ?? NaN, 1)} / ${decimals(change.cosine[0], 2)}` : "–"}</td>;
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="fine">Accuracy that a linear probe loses, and the cosine of the features with those of the unchanged image; the greatest loss first. A negative loss is a gain.</p>
    </section>
  );
}

function Worst({ table }: { table: Table }) {
  const encoders = table.encoders.filter((name) => table.worst[name]?.length);
  const [chosen, setEncoder] = useState(encoders[0] ?? "");
  const encoder = encoders.includes(chosen) ? chosen : encoders[0];
  if (!encoder) return null;
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Where the {table.column} outweighs the tissue</h2>
        <Select label="Encoder" value={encoder} options={encoders.map((name) => ({ value: name, label: name }))} onChange={setEncoder} />
      </header>
      <ul class="triples">
        {table.worst[encoder].map((each) => (
          <li>
            <Picture shown={each.image} words={`margin ${decimals(each.margin, 2)}`} kind="image" />
            <Picture shown={each.same_site} words={`other tissue, same ${table.column}`} kind="wrong" />
            <Picture shown={each.same_class} words={`same tissue, other ${table.column}`} kind="right" />
          </li>
        ))}
      </ul>
      <p class="fine">
        The images of the lowest cross-site margin (below 0: the {table.column} is nearer than the tissue). Left: the image; middle: its nearest neighbour of another class at the same {table.column}; right: its nearest of the same class elsewhere.
        Numbers are cosine distances.
      </p>
    </section>
  );
}

function Picture({ shown, words, kind }: { shown: Shown; words: string; kind: string }) {
  const alt = `${shown.label}, ${shown.site}: ${shown.name}`;
  return (
    <figure class={kind}>
      {shown.picture ? <img src={shown.picture} alt={alt} title={shown.name} width="128" height="128" loading="lazy" decoding="async" /> : <span class="no-thumb" role="img" aria-label={alt}>no picture</span>}
      <figcaption>
        <b>{shown.label}</b> {shown.site}
        <small>{words}{shown.distance !== null && `, ${shown.distance.toPrecision(2)}`}</small>
      </figcaption>
    </figure>
  );
}
