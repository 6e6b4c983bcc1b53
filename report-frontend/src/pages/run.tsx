// One encoder, one dataset, one task: every view is computed from the stored predictions.
import { useMemo, useState } from "preact/hooks";
import { boardName, decodeProbabilities, metricOf, runName, unitOf, unpack, type Images, type Packed, type RunData, type Site } from "../data";
import { calibration, confusion, precisionRecall, roc, topProbability, type Predictions } from "../curves";
import { count, day, decimals, interval, percent } from "../format";
import { Chart } from "../chart";
import { useGrid } from "../grid";
import { clipped } from "../charts/critical-difference";
import { classCurves, type ClassCurve } from "../charts/class-curves";
import { reliability } from "../charts/reliability";
import { Gallery, ImageDialog, useThumbs, type Tile, type Thumbs } from "../gallery";
import { Breadcrumbs, Coded, CopyBox, Loading, Notice, Segments, TableDownloads, useData } from "../parts";
import { findRun, href, runHref, type Route } from "../route";
import { TargetRun } from "./target-run";
import { EmbeddingMap } from "../embedding";

export interface View {
  run: number;
  data: RunData;
  images: Images;
  predictions: Predictions;
  thumbs: Thumbs | null;
}

export function RunPage({ site, route }: { site: Site; route: Route }) {
  const run = findRun(site, route.parts);
  const { value: data, error } = useData<RunData>(run >= 0 && !site.failures[run] ? `run/${run}` : null);
  const { value: images, error: imagesError } = useData<Images>(data?.images ? `images/${data.images}` : null);
  const thumbs = useThumbs(site, data?.images);
  const predictions = useMemo(() => (data && images ? predictionsOf(data, images) : null), [data, images]);
  if (run < 0)
    return (
      <Notice kind="problem">
        This report has no such run. <a href={href("")}>Go to the leaderboard</a>
      </Notice>
    );
  if (site.failures[run]) return <Notice kind="problem">{site.failures[run]}</Notice>;
  if (data?.target) return <TargetRun site={site} run={run} data={data} />;
  if (!data || !images || !predictions) return <Loading error={error ?? imagesError} />;
  return <Run site={site} view={{ run, data, images, predictions, thumbs }} />;
}

export function predictionsOf(data: RunData, images: Images): Predictions {
  return {
    n: images.names.length,
    c: data.classes.length,
    labels: unpack(images.labels),
    predicted: unpack(data.predicted),
    probabilities: widened(decodeProbabilities(data.probabilities), data.probabilities.shape[1], data.classes.length),
  };
}

/** Columns that the probabilities do not cover are unknown. */
function widened(values: Float64Array, columns: number, classes: number): Float64Array {
  if (columns === classes) return values;
  const wide = new Float64Array((values.length / columns) * classes).fill(NaN);
  for (let k = 0; k < values.length; k++) wide[Math.floor(k / columns) * classes + (k % columns)] = values[k];
  return wide;
}

/** What the run is, and the way to its siblings. */
export function RunTitle({ site, run, about }: { site: Site; run: number; about: string }) {
  const board = site.boards[site.runs.board[run]];
  const dataset = site.datasets[site.runs.dataset[run]];
  const name = runName(site, run);
  const others = site.runs.encoder.map((_, k) => k).filter((k) => k !== run && !site.failures[k] && site.runs.board[k] === site.runs.board[run] && site.runs.dataset[k] === site.runs.dataset[run]);
  const siblings = site.runs.encoder.map((_, k) => k).filter((k) => site.runs.encoder[k] === site.runs.encoder[run] && site.runs.dataset[k] === site.runs.dataset[run]);
  return (
    <>
      <Breadcrumbs trail={[{ label: "Leaderboard", href: href("", [], { board: site.runs.board[run] }) }, { label: dataset.name, href: href("dataset", [dataset.name]) }, { label: name }]} />
      <div class="title">
        <h1>
          {name} <span class="on">on {dataset.name}</span>
        </h1>
        <p class="lead">
          {boardName(board)}, {about}
        </p>
        <div class="actions">
          {siblings.length > 1 && (
            <label class="control">
              <span>Task</span>
              <select value={run} onChange={(event) => (location.hash = runHref(site, Number(event.currentTarget.value)))}>
                {siblings.map((k) => (
                  <option value={k} selected={k === run}>
                    {boardName(site.boards[site.runs.board[k]])}
                    {site.boards[site.runs.board[k]].preset !== board.preset && ` (${site.boards[site.runs.board[k]].preset})`}
                  </option>
                ))}
              </select>
            </label>
          )}
          {others.length > 0 && (
            <a class="button" href={href("compare", [], { board: site.runs.board[run], dataset: dataset.name, a: name })}>
              Compare with another encoder
            </a>
          )}
        </div>
      </div>
    </>
  );
}

function Run({ site, view }: { site: Site; view: View }) {
  const { run, data, images, predictions } = view;
  const [open, setOpen] = useState<number | null>(null);
  const [cell, setCell] = useState<[number, number] | null>(null);
  const dataset = site.datasets[site.runs.dataset[run]];
  const name = runName(site, run);
  const noun = unitOf(site.boards[site.runs.board[run]]);
  const groups = images.groupNames && noun !== "patient" ? ` of ${count(images.groupNames.length, "group")}` : "";
  return (
    <>
      <RunTitle site={site} run={run} about={`${count(predictions.n, noun)}${groups}, ${count(predictions.c, "class").replace("classs", "classes")}`} />
      {data.warnings.map((text) => (
        <Notice kind="warning">{text}</Notice>
      ))}
      {data.averaged && (
        <Notice>
          The metrics are means over episodes or training runs. The pictures below show each image’s mean probabilities over the episodes it took part in, which are usually more accurate than a single episode.
        </Notice>
      )}
      <div class={predictions.c <= 12 ? "columns" : "stacked"}>
        <Metrics site={site} name={`${name}_${dataset.name}`} data={data} units={images.groupNames ? { number: images.groupNames.length, noun: "group" } : { number: predictions.n, noun: "image" }} />
        <PerClass site={site} name={`${name}_${dataset.name}`} data={data} />
      </div>
      <div class={predictions.c <= 12 ? "columns" : "stacked"}>
        <Confusion classes={data.classes} predictions={predictions} noun="image" name={`${name}_${dataset.name}`} cell={cell} onChoose={setCell} />
        <Pictures view={view} cell={cell} onClear={() => setCell(null)} onOpen={setOpen} />
      </div>
      <div class={predictions.c <= 12 ? "columns" : "stacked"}>
        <Curves view={view} name={`${name}_${dataset.name}`} />
        <Reliability view={view} name={`${name}_${dataset.name}`} />
      </div>
      {site.tiles.includes(run) && <TopTiles run={run} view={view} />}
      <EmbeddingMap site={site} view={view} onOpen={setOpen} name={`${name}_${dataset.name}`} />
      <Provenance data={data} />
      {open !== null && (
        <ImageDialog
          images={images}
          thumbs={view.thumbs}
          image={open}
          classes={data.classes}
          label={predictions.labels[open]}
          predicted={predictions.predicted[open]}
          probabilities={[...predictions.probabilities.subarray(open * predictions.c, (open + 1) * predictions.c)]}
          onClose={() => setOpen(null)}
        />
      )}
    </>
  );
}

interface Attended {
  patient: string;
  /** Name, attention and place of the picture, if there is one. */
  tiles: [string, number, string][];
  maps: SlideMap[];
}

/** Attention on the tiles of a slide. */
interface SlideMap {
  slide: string;
  tiles: number;
  /** Levels [rows, columns], 1 to LEVELS; 0 where no tile is. */
  cells: Packed;
}

/** Even steps of the logarithm, from a tenth of the mean of the patient's tiles to ten times that. */
const LEVELS = 8;
const shade = (level: number) => 0.1 + (0.9 * level) / (LEVELS - 1);

/** One path for each level, so that a slide of many tiles stays light. */
function AttentionMap({ map, patient }: { map: SlideMap; patient: string }) {
  const paths = useMemo(() => {
    const columns = map.cells.shape[1];
    const found = Array.from({ length: LEVELS }, () => "");
    unpack(map.cells).forEach((level, k) => level && (found[level - 1] += `M${k % columns} ${Math.floor(k / columns)}h1v1h-1z`));
    return found;
  }, [map]);
  const [rows, columns] = map.cells.shape;
  const side = Math.min(16, 208 / Math.max(rows, columns));
  return (
    <figure class="attention">
      <svg viewBox={`0 0 ${columns} ${rows}`} width={columns * side} height={rows * side} role="img" aria-label={`Attention on ${count(map.tiles, "tile")} of ${map.slide}`}>
        {paths.map((path, level) => path && <path key={level} d={path} style={{ opacity: shade(level) }} />)}
      </svg>
      <figcaption>
        {map.slide !== patient && `${map.slide}, `}
        {count(map.tiles, "tile")}
      </figcaption>
    </figure>
  );
}

/** Patients that are shown at once. */
const PATIENTS = 10;

/** The tiles that decide the prediction of each patient: those with the most attention. */
function TopTiles({ run, view }: { run: number; view: View }) {
  const { value: found, error } = useData<Attended[]>(`tiles/${run}`);
  const [shown, setShown] = useState(PATIENTS);
  if (!found) return <Loading error={error} />;
  const { data, images, predictions: p } = view;
  const place = new Map(images.names.map((name, k) => [name, k]));
  return (
    <section class="card">
      <h2>{found.some(({ maps }) => maps.length) ? "Attention" : "Tiles with the most attention"}</h2>
      <p class="fine">For each patient the share of the attention that a tile got, as a mean over the training runs. Attention shows what entered the prediction; it does not show that the model is right for that reason.</p>
      {found.some(({ maps }) => maps.length) && (
        <p class="fine scale">
          Maps show the tiles where they are on the slide. Attention: a tenth of the mean{" "}
          {Array.from({ length: LEVELS }, (_, level) => (
            <i style={{ opacity: shade(level) }} />
          ))}{" "}
          ten times the mean of the patient’s tiles.
        </p>
      )}
      {found.slice(0, shown).map(({ patient, tiles, maps }) => {
        const k = place.get(patient);
        return (
          <article class="attended" key={patient}>
            <h3>
              {patient}
              {k !== undefined && (
                <small>
                  {" "}
                  true {data.classes[p.labels[k]]}, predicted {data.classes[p.predicted[k]]}
                  {p.labels[k] !== p.predicted[k] && " (wrong)"}
                </small>
              )}
            </h3>
            {maps.length > 0 && (
              <div class="maps">
                {maps.map((map) => (
                  <AttentionMap key={map.slide} map={map} patient={patient} />
                ))}
              </div>
            )}
            <ol>
              {tiles.map(([name, weight, picture]) => (
                <li key={name} title={name}>
                  {picture ? <img src={picture} alt={name} width="96" height="96" loading="lazy" /> : <span class="name">{name}</span>}
                  <span>{percent(weight, 1)}</span>
                </li>
              ))}
            </ol>
          </article>
        );
      })}
      {found.length > shown && (
        <button type="button" class="quiet" onClick={() => setShown(shown + PATIENTS)}>
          Show more of {count(found.length, "patient")}
        </button>
      )}
    </section>
  );
}

/** What was drawn again, and how many there are. */
interface Units {
  number: number;
  noun: string;
}

/** The largest share of a kind of which none was seen among n: Clopper and Pearson's bound at 95%. */
const mostUnseen = (n: number) => 1 - 0.025 ** (1 / n);

export function Metrics({ site, name, data, units }: { site: Site; name: string; data: RunData; units: Units }) {
  const [all, setAll] = useState(false);
  const names = Object.keys(data.metrics);
  const first = site.metrics.filter((m) => m.offered && names.includes(m.name)).map((m) => m.name);
  const shown = data.target ? names : all ? [...first, ...names.filter((name) => !first.includes(name))] : first;
  const rows = shown.map((metric) => {
    const facts = metricOf(site, metric);
    return { metric, label: data.target ? facts.label : facts.short, lower: facts.lower, value: data.metrics[metric], low: data.bounds[metric]?.[0] ?? null, high: data.bounds[metric]?.[1] ?? null };
  });
  const reasons = new Map<string, string[]>();
  for (const { metric, label, value, low } of rows) {
    const reason = value !== null && low === null && data.noBounds[metric]?.replace(/^no interval: /, "");
    if (reason) reasons.set(reason, [...(reasons.get(reason) ?? []), label]);
  }
  // Intervals over episodes speak of other units.
  const flat = !data.averaged && rows.some((row) => row.low !== null && row.low === row.high);
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Metrics</h2>
        <TableDownloads table={() => ({ name: `metrics_${name}`, caption: "Metrics with 95% intervals.", header: ["metric", "value", "low", "high"], rows: rows.map((r) => [r.label, r.value, r.low, r.high]) })} />
      </header>
      <table class="plain metrics">
        <thead>
          <tr>
            <th scope="col">Metric</th>
            <th scope="col" class="number">Value</th>
            <th scope="col">95% interval</th>
            <th scope="col" class="drawn" aria-hidden="true" />
          </tr>
        </thead>
        <tbody>
          {rows.map(({ metric, label, lower, value, low, high }) => (
            <tr key={metric}>
              <th scope="row">
                {label}
                {lower && <small> lower is better</small>}
              </th>
              <td class="number">
                <b>{decimals(value)}</b>
              </td>
              <td>{value === null ? <small>{data.undefined[metric] ?? "no value"}</small> : interval(low, high)}</td>
              <td class="drawn" aria-hidden="true">
                {value !== null && value >= 0 && value <= 1 && (
                  <span class="bar">
                    {low !== null && high !== null && <i class="range" style={{ left: `${100 * Math.max(0, low)}%`, right: `${100 * (1 - Math.min(1, high))}%` }} />}
                    <i class="dot" style={{ left: `${100 * value}%` }} />
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="fine">
        {data.boundsFrom && <>Intervals: {data.boundsFrom}. </>}
        {[...reasons].map(([reason, labels]) => <>No interval of {labels.join(", ")}: <Coded text={reason} />. </>)}
        {flat && <>An interval without width is no certainty: what {count(units.number, units.noun)} {units.number === 1 ? "does" : "do"} not show may still be up to {percent(mostUnseen(units.number), 1)} of them. </>}
        {names.length > shown.length || all ? (
          <button type="button" class="link" onClick={() => setAll(!all)} aria-expanded={all}>
            {all ? "Fewer metrics" : `All ${names.length} metrics`}
          </button>
        ) : null}
      </p>
    </section>
  );
}

function PerClass({ site, name, data }: { site: Site; name: string; data: RunData }) {
  const classes = Object.keys(data.perClass);
  if (!classes.length) return null;
  const columns = ["recall", "precision", "f1_score", "auroc", "support"].filter((key) => classes.some((c) => key in data.perClass[c]));
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Classes</h2>
        <TableDownloads table={() => ({ name: `classes_${name}`, caption: "Metrics of each class.", header: ["class", ...columns.map((key) => metricOf(site, key).short)], rows: classes.map((c) => [c, ...columns.map((key) => data.perClass[c][key] ?? null)]) })} />
      </header>
      <div class="scroll">
        <table class="plain by-class">
          <thead>
            <tr>
              <th scope="col">Class</th>
              {columns.map((key) => (
                <th scope="col" class="number">
                  {key === "support" ? "Images" : metricOf(site, key).short}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {classes.map((c) => (
              <tr key={c}>
                <th scope="row">{c}</th>
                {columns.map((key) => (
                  <td class="number">{key === "support" ? (data.perClass[c][key] ?? 0) : decimals(data.perClass[c][key])}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

type Cell = [number, number] | null;

interface ConfusionProps {
  classes: string[];
  predictions: Predictions;
  noun: string;
  name: string;
  cell: Cell;
  /** Without it the cells cannot be chosen. */
  onChoose?: (cell: Cell) => void;
}

export function Confusion({ classes, predictions: p, noun, name, cell, onChoose }: ConfusionProps) {
  const [shares, setShares] = useState("counts");
  const table = useMemo(() => confusion(p), [p]);
  const totals = table.map((row) => row.reduce((a, b) => a + b, 0));
  const grid = useGrid();
  // Long names would make the columns wider than the page: numbers stand for them.
  const numbered = p.c > 12 || Math.max(...classes.map((label) => label.length)) > 9;
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Confusion matrix</h2>
        <Segments label="Show" value={shares} options={[{ value: "counts", label: "Counts" }, { value: "rows", label: "Row %" }]} onChange={setShares} />
        <TableDownloads table={() => ({ name: `confusion_${name}`, caption: "Confusion matrix; rows are true classes, columns predicted ones.", header: ["true \\ predicted", ...classes], rows: table.map((row, k) => [classes[k], ...(shares === "rows" ? row.map((v) => (totals[k] ? Number((v / totals[k]).toFixed(4)) : null)) : row)]) })} />
      </header>
      <div class="scroll">
        <table class={`confusion ${p.c > 15 ? "many" : ""}`} ref={grid} style={{ "--classes": p.c }}>
          <caption>
            {onChoose ? "Rows: true class. Columns: predicted class. Choose a cell to see its images; arrow keys move between cells." : "Rows: true level. Columns: predicted level."}
          </caption>
          <thead>
            <tr>
              <td />
              {classes.map((label, k) => (
                <th scope="col" title={label}>
                  <span>{numbered ? <><span aria-hidden="true">{k + 1}</span><span class="sr">{label}</span></> : label}</span>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {table.map((row, t) => (
              <tr key={t}>
                <th scope="row" title={classes[t]}>{numbered && <small>{t + 1} </small>}{p.c > 15 ? clipped(classes[t], 28) : classes[t]}</th>
                {row.map((value, q) => {
                  const share = totals[t] ? value / totals[t] : 0;
                  const chosen = cell?.[0] === t && cell[1] === q;
                  return (
                    <td class={t === q ? "diagonal" : undefined}>
                      <button
                        type="button"
                        data-cell
                        tabIndex={-1}
                        disabled={value === 0}
                        aria-disabled={!onChoose}
                        aria-pressed={chosen}
                        class={share > 0.5 ? "strong" : undefined}
                        style={{ "--share": tint(share).toFixed(3) }}
                        onClick={() => onChoose?.(chosen ? null : [t, q])}
                        aria-label={`true ${classes[t]}, predicted ${classes[q]}: ${count(value, noun)}, ${percent(share)}`}
                        data-true={t}
                        data-predicted={q}
                      >
                        {value === 0 ? "·" : shares === "rows" ? percent(share) : value}
                      </button>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** How much colour a cell gets: pale up to one half, strong above it, and nothing between, where no text would be legible. */
function tint(share: number): number {
  return share > 0.5 ? 0.8 + 0.4 * (share - 0.5) : 0.5 * Math.sqrt(2 * share);
}

/** Mistakes that are shown at once, and at most. */
const [FEW, MISTAKES] = [15, 100];

/** The images of the chosen cell of the confusion matrix, or the most confident mistakes. */
function Pictures({ view, cell, onClear, onOpen }: { view: View; cell: Cell; onClear: () => void; onOpen: (image: number) => void }) {
  const { data, images, predictions: p, thumbs } = view;
  const tiles = useMemo(() => {
    const found: Tile[] = [];
    for (let i = 0; i < p.n; i++) {
      const wanted = cell ? p.labels[i] === cell[0] && p.predicted[i] === cell[1] : p.labels[i] !== p.predicted[i];
      if (wanted) found.push({ image: i, label: data.classes[p.labels[i]], predicted: data.classes[p.predicted[i]], confidence: topProbability(p, i), wrong: p.labels[i] !== p.predicted[i] });
    }
    return found.sort((a, b) => b.confidence! - a.confidence!);
  }, [p, cell]);
  return (
    <section class="card pictures" aria-live="polite">
      <header class="figure-head">
        <h2>{cell ? `${count(tiles.length, "image")} of ${data.classes[cell[0]]} ${cell[0] === cell[1] ? "predicted as such" : `predicted as ${data.classes[cell[1]]}`}` : "Most confident mistakes"}</h2>
        {cell && (
          <button type="button" class="quiet" onClick={onClear}>
            Back to the mistakes
          </button>
        )}
      </header>
      <Gallery tiles={cell ? tiles : tiles.slice(0, MISTAKES)} first={cell ? undefined : FEW} images={images} thumbs={thumbs} onOpen={onOpen} empty="No mistakes: every test image is classified correctly." />
    </section>
  );
}

function Curves({ view, name }: { view: View; name: string }) {
  const { data, predictions: p } = view;
  const [kind, setKind] = useState("roc");
  const binary = p.c === 2;
  const curves = useMemo(() => {
    const found: ClassCurve[] = [];
    for (let k = binary ? 1 : 0; k < p.c; k++) {
      const points = kind === "roc" ? roc(p, k) : precisionRecall(p, k);
      const row = data.perClass[data.classes[k]] ?? {};
      const positives = Array.from(p.labels).filter((label) => label === k).length;
      if (points) found.push({ name: data.classes[k], points, area: (kind === "roc" ? row.auroc : row.auprc) ?? null, chance: kind === "roc" ? null : positives / p.n });
    }
    return found;
  }, [p, kind]);
  const labels = kind === "roc" ? { x: "false positive rate", y: "true positive rate", area: "AUROC" } : { x: "recall", y: "precision", area: "AUPRC" };
  if (!curves.length) {
    const present = new Set(Array.from(p.labels)).size;
    return (
      <section class="card">
        <h2>ROC and precision-recall</h2>
        <Notice>{present < 2 ? "Every test image is of one class, so there are no curves." : "The stored probabilities do not cover the classes, so there are no curves."}</Notice>
      </section>
    );
  }
  return (
    <Chart
      title={kind === "roc" ? "ROC of each class" : "Precision and recall of each class"}
      name={`${kind}_${name}`}
      depends={[curves]}
      draw={(width, palette) => classCurves(curves, labels, width, palette)}
      controls={<Segments label="Curve" value={kind} options={[{ value: "roc", label: "ROC" }, { value: "pr", label: "PR" }]} onChange={setKind} />}
      caption="Each class against the rest; the dashed line is chance."
    />
  );
}

function Reliability({ view, name }: { view: View; name: string }) {
  const bins = useMemo(() => calibration(view.predictions), [view.predictions]);
  if (!bins.length) return null;
  return (
    <Chart
      title="Reliability"
      name={`reliability_${name}`}
      depends={[bins]}
      paperWidth={420}
      draw={(width, palette) => reliability(bins, width, palette)}
      caption={<>Below the diagonal the classifier is overconfident, above it underconfident. Columns show how many images there are; ECE {decimals(view.data.metrics.ece)}.</>}
    />
  );
}

/** A value of the results file as people read it. */
function inWords(value: unknown): string {
  if (typeof value === "number") return value.toLocaleString("en", { maximumSignificantDigits: 6 });
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.flat(3).map(inWords).join(", ");
  if (value && typeof value === "object") return Object.entries(value).sort(([a], [b]) => Number(a) - Number(b) || 0).map(([key, entry]) => `${key.replace(/_/g, " ")}: ${inWords(entry)}`).join(", ");
  return value === null ? "" : String(value);
}

/** What the keys of a results file mean. */
const MEANING: Record<string, string> = {
  cost: "regularization strength",
  size: "image size",
  num_train: "training images",
  num_train_groups: "patients or slides in training",
  num_val: "validation images",
  val_use: "validation",
  num_train_events: "events in training",
  num_test_tiles: "test tiles",
  alpha: "penalty (alpha)",
  alpha_chosen_on: "penalty chosen on",
  way: "classes of an episode",
  shot: "labeled images per class",
  n_iter: "episodes",
  token_grid: "grid of patch tokens",
  chosen_by: "hyper-parameters chosen by",
  versions: "software",
  weight_norm: "norm of the weights",
};

export function Provenance({ data }: { data: RunData }) {
  const p = data.provenance;
  const facts: [string, string][] = [
    ["preset", p.preset],
    ["seed", String(p.seed)],
    ["fingerprint of the features", p.fingerprint],
    ["histobench", p.version],
    ["date", day(p.date)],
    ["description", p.description],
    ["training features", p.train_features],
    ["validation features", p.val_features],
    ["test features", p.test_features],
    // Caveats are at the top of the page.
    ...Object.entries(data.info).filter(([key]) => key !== "caveats" || !data.warnings.length).map(([key, value]): [string, string] => [MEANING[key] ?? key.replace(/_/g, " "), inWords(value)]),
  ];
  return (
    <section class="card">
      <h2>Where these numbers come from</h2>
      <dl class="facts">
        {facts.filter(([, value]) => value).map(([key, value]) => (
          <div>
            <dt>{key}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {p.command ? (
        <>
          <CopyBox label="Command that repeats this run" text={p.command} />
          <p class="fine">Paths start in the folder that holds the results folder.</p>
        </>
      ) : (
        <p class="fine">The features of this run were not read from files, so there is no command that repeats it.</p>
      )}
    </section>
  );
}
