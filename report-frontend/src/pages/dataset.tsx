// One dataset: its classes and images, what was checked, and what every encoder makes of it.
import { clipped } from "../charts/critical-difference";
import { useMemo, useState } from "preact/hooks";
import * as Plot from "@observablehq/plot";
import { boardName, metricsOf, runName, targetsOf, unpack, type Board, type Images, type Site } from "../data";
import { count, decimals, interval, percent } from "../format";
import { base, Chart } from "../chart";
import { chanceLevel, chanceWords } from "../chance";
import { intervalRows, LETTER, type IntervalRow } from "../charts/intervals";
import { learningCurve, type CurvePoint } from "../charts/learning-curve";
import { legend } from "../embedding";
import { Thumb, useThumbs } from "../gallery";
import { Coded, Breadcrumbs, Loading, Notice, Select, TableDownloads, useData } from "../parts";
import { href, runHref, type Route } from "../route";
import { Robustness, type RobustnessData } from "./robustness";
import type { Palette } from "../theme";

interface LearningPoint {
  run: number;
  way: string;
  x: number;
  preset: string;
  values: Record<string, [number, number | null, number | null]>;
  spread: Record<string, number>;
}

interface DatasetData {
  classes: string[];
  images: string | null;
  counts: Record<string, number[]>;
  numTrain: number | null;
  examples: number[][];
  findings: { checked: boolean; why?: string; images?: number; total?: number; items?: { level: string; kind: string; message: string }[] };
  fewShot: LearningPoint[];
  efficiency: LearningPoint[];
  splits: OverSplits[];
  robustness: RobustnessData[];
}

/** Encoders over repeated splits of the same images, best mean first. */
interface OverSplits {
  task: string;
  setting: string;
  preset: string;
  metric: string;
  scheme: string;
  splits: number;
  pairs: number;
  rows: { name: string; mean: number; low: number | null; high: number | null; least: number; greatest: number; rank: number; rankLow: number; rankHigh: number; first: number; behind: boolean }[];
  notes: string[];
}

export function DatasetsPage({ site }: { site: Site }) {
  return (
    <>
      <div class="title">
        <h1>Datasets</h1>
        <p class="lead">{count(site.datasets.length, "dataset")} in this report.</p>
      </div>
      <ul class="tiles">
        {site.datasets.map((dataset, index) => {
          const runs = site.runs.dataset.filter((d) => d === index).length;
          return (
            <li key={dataset.name}>
              <a class="card" href={href("dataset", [dataset.name])}>
                <h2>{dataset.name}</h2>
                <p>
                  {count(dataset.images, "test image")}
                  {dataset.groups ? ` of ${count(dataset.groups, "group")}` : ""}, {targetsOf(dataset)}
                </p>
                <p class="fine">{count(runs, "run")}</p>
              </a>
            </li>
          );
        })}
      </ul>
    </>
  );
}

export function DatasetPage({ site, route }: { site: Site; route: Route }) {
  const index = site.datasets.findIndex((dataset) => dataset.name === route.parts[0]);
  const { value: data, error } = useData<DatasetData>(index >= 0 ? `dataset/${index}` : null);
  if (index < 0)
    return (
      <Notice kind="problem">
        This report has no dataset of that name. <a href={href("datasets")}>All datasets</a>
      </Notice>
    );
  if (!data) return <Loading error={error} />;
  const dataset = site.datasets[index];
  const train = data.counts.train?.reduce((a, b) => a + b, 0) ?? data.numTrain;
  return (
    <>
      <Breadcrumbs trail={[{ label: "Datasets", href: href("datasets") }, { label: dataset.name }]} />
      <div class="title">
        <h1>{dataset.name}</h1>
        <p class="lead">
          {count(dataset.images, "test image")}
          {dataset.groups ? ` in ${count(dataset.groups, "group")} (patients, slides or the like)` : ""}
          {train ? `, ${count(train, "training image")}` : ""}, {targetsOf(dataset)}
        </p>
      </div>
      <Results site={site} index={index} />
      {data.splits.map((table) => (
        <Splits table={table} name={dataset.name} />
      ))}
      <div class="columns">
        <div class="stack">
          {data.classes.length > 0 && <Balance data={data} name={dataset.name} />}
          <Leakage data={data} />
        </div>
        <Examples site={site} data={data} />
      </div>
      {data.robustness.length > 0 && <Robustness tables={data.robustness} name={dataset.name} />}
      {data.fewShot.length > 0 && <Curves site={site} points={data.fewShot} classes={dataset.classes} title="Few-shot" name={`few-shot_${dataset.name}`} kind="few" />}
      {data.efficiency.length > 0 && <Curves site={site} points={data.efficiency} classes={dataset.classes} title="Label efficiency" name={`label-efficiency_${dataset.name}`} kind="share" />}
    </>
  );
}

function Splits({ table, name }: { table: OverSplits; name: string }) {
  const task = `${table.task}${table.setting ? ` ${table.setting}` : ""}${table.preset ? ` (${table.preset})` : ""}`;
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Over {count(table.splits, "split")}: {task}</h2>
        <TableDownloads
          table={() => ({
            name: `splits_${table.task}_${name}`,
            caption: `${table.metric} over ${table.splits} splits (${table.scheme}).`,
            header: ["encoder", "mean", "low", "high", "least", "greatest", "mean rank", "rank from", "rank to", "share first"],
            rows: table.rows.map((row) => [row.name, row.mean, row.low, row.high, row.least, row.greatest, row.rank, row.rankLow, row.rankHigh, row.first]),
          })}
        />
      </header>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">Encoder</th>
              <th scope="col" class="number">Mean {table.metric}</th>
              <th scope="col">95% interval</th>
              <th scope="col">Splits from … to</th>
              <th scope="col" class="number">Rank</th>
              <th scope="col" class="number">First in</th>
            </tr>
          </thead>
          <tbody>
            {table.rows.map((row) => (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                <td class="number">{decimals(row.mean)}{row.behind && " *"}</td>
                <td>{interval(row.low, row.high)}</td>
                <td>{decimals(row.least)} to {decimals(row.greatest)}</td>
                <td class="number">{row.rank.toFixed(1)} <small>({row.rankLow} to {row.rankHigh})</small></td>
                <td class="number">{percent(row.first)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="fine">
        The same features trained and tested on other splits ({table.scheme}, repeats x folds): one split is one draw. Intervals and tests: Nadeau and Bengio’s corrected resampled t, because training sets overlap; * behind the first after Holm’s correction over {count(table.pairs, "pair")}. Ranks: mean, and where the middle 95% of splits lie.{table.notes.map((note) => ` ${note}.`)}
      </p>
    </section>
  );
}

function Results({ site, index }: { site: Site; index: number }) {
  const boards = [...new Set(site.runs.board.filter((_, run) => site.runs.dataset[run] === index))].sort((a, b) => a - b);
  const [number, setNumber] = useState(boards[0]);
  const [chosen, setMetric] = useState("");
  const { value: board, error } = useData<Board>(`board/${number}`);
  const metrics = metricsOf(site, number);
  const metric = metrics.find((m) => m.name === chosen) ?? metrics[0];
  const metricName = metric.name;
  const rows = useMemo<(IntervalRow & { run: number })[]>(() => {
    if (!board) return [];
    const column = board.datasets.indexOf(index);
    const data = board.metrics[metricName];
    return board.rows
      .map((name, r) => {
        const strong = Boolean(data.mayBeBest[r][column]);
        return { name, run: board.runs[r][column], value: data.value[r][column]!, low: data.low[r][column], high: data.high[r][column], strong, note: strong ? "may be the best" : undefined };
      })
      .filter((row) => row.run >= 0 && row.value !== null)
      .sort((a, b) => (metric.lower ? a.value - b.value : b.value - a.value));
  }, [board, metricName]);
  if (!board) return <Loading error={error} />;
  const chance = chanceLevel(metricName, site.datasets[index].classes, site.boards[number].setting);
  const preset = (n: number) => (site.boards.filter((b) => boardName(b) === boardName(site.boards[n])).length > 1 ? ` (${site.boards[n].preset})` : "");
  return (
    <Chart
      title="Results of all encoders"
      name={`results_${site.datasets[index].name}_${boardName(site.boards[number])}_${metricName}`}
      depends={[rows]}
      draw={(width, palette) => intervalRows(rows, { label: `${metric.label}${metric.lower ? " (lower is better)" : ""}`, chance }, width, palette)}
      controls={
        <>
          <Select label="Task" value={String(number)} options={boards.map((n) => ({ value: String(n), label: boardName(site.boards[n]) + preset(n) }))} onChange={(n) => setNumber(Number(n))} />
          <Select label="Metric" value={metricName} options={metrics.map((m) => ({ value: m.name, label: m.label }))} onChange={setMetric} />
        </>
      }
      caption={
        <>
          {rows.some((row) => row.low !== null) ? "Bars are 95% intervals." : "No value has an interval."} {rows.some((row) => row.strong) && "Filled: may be the best."}{chanceWords(chance)}<details open={rows.length <= 12}>
            <summary>Runs</summary>
            {rows.map((row, k) => (
              <>
                {k > 0 && ", "}
                <a href={runHref(site, row.run)}>{row.name}</a>
              </>
            ))}
          </details>
        </>
      }
    />
  );
}

function Balance({ data, name }: { data: DatasetData; name: string }) {
  const splits = Object.keys(data.counts).sort((a, b) => ["train", "val", "test"].indexOf(a) - ["train", "val", "test"].indexOf(b));
  const rows = splits.flatMap((split) => data.counts[split].map((images, k) => ({ split, images, name: data.classes[k], k })));
  return (
    <Chart
      title="Class balance"
      name={`classes_${name}`}
      depends={[rows]}
      draw={(width, palette) => balance(rows, data.classes, splits, width, palette)}
      caption={splits.length > 1 ? "Images of each class in each split." : "Test images of each class."}
    />
  );
}

function balance(rows: { split: string; images: number; name: string; k: number }[], classes: string[], splits: string[], width: number, palette: Palette): SVGSVGElement {
  const colour = (split: string) => (split === "test" || splits.length === 1 ? palette.accent : split === "val" ? palette.second : palette.line);
  const top = splits.length > 1 ? 34 : 8;
  const room = Math.min(width * 0.4, Math.max(...classes.map((c) => c.length)) * LETTER + 14);
  const bar = Math.max(9, 22 / splits.length);
  const svg = Plot.plot({
    ...base(width, palette, rows.map((row) => `${row.name} ${row.split}: ${row.images}`).join("; ")),
    height: top + classes.length * (bar * splits.length + 10) + 34,
    marginLeft: room,
    marginRight: 56,
    marginTop: top,
    x: { label: null, grid: false, axis: null },
    y: { domain: splits, axis: null, padding: 0.08 },
    fy: { domain: classes.map((_, k) => k), axis: null, padding: 0.22 },
    marks: [
      Plot.barX(rows, { fy: "k", y: "split", x: "images", fill: (d: { split: string }) => colour(d.split), rx: 2 }),
      Plot.text(rows, { fy: "k", y: "split", x: "images", text: (d: { images: number }) => d.images.toLocaleString("en"), dx: 6, textAnchor: "start", fill: palette.ink }),
      Plot.text(classes.map((label, k) => ({ label, k })), { fy: "k", text: (d: { label: string }) => clipped(d.label, Math.max(5, Math.floor((room - 14) / LETTER))), frameAnchor: "left", textAnchor: "end", dx: -8, fill: palette.ink }),
    ],
  }) as SVGSVGElement;
  if (splits.length > 1) legend(svg, splits.map((split) => ({ name: split, colour: colour(split) })), Math.max(3, Math.floor(width / 110)), width, palette);
  return svg;
}

function Leakage({ data }: { data: DatasetData }) {
  const found = data.findings;
  const errors = found.items?.filter((item) => item.level === "error") ?? [];
  if (!found.checked) return <p class="fine">Leakage was not checked: <Coded text={found.why ?? ""} />.</p>;
  return (
    <section class="card">
      <h2>Leakage and other findings</h2>
      {found.total === 0 ? (
        <p>
          <b class="right">✓</b> {count(found.images!, "image")} looked at: no image and no patient is in two splits, no image is there twice.
        </p>
      ) : (
        <>
          <Notice kind={errors.length ? "problem" : "warning"}>
            {errors.length ? `${count(errors.length, "finding")} that make the results doubtful` : count(found.total!, "finding")}
          </Notice>
          <ul class="findings">
            {found.items!.map((item) => (
              <li>
                <b class={item.level === "error" ? "wrong" : undefined}>{item.kind}</b> {item.message}
              </li>
            ))}
          </ul>
          {found.total! > found.items!.length && <p class="fine">and {found.total! - found.items!.length} more; `histobench data check` lists all.</p>}
        </>
      )}
    </section>
  );
}

function Examples({ site, data }: { site: Site; data: DatasetData }) {
  const { value: images } = useData<Images>(data.images ? `images/${data.images}` : null);
  const thumbs = useThumbs(site, data.images ?? undefined);
  if (!images || !thumbs) return null;
  const counts = data.classes.map(() => 0);
  for (const label of unpack(images.labels)) counts[label]++;
  return (
    <section class="card">
      <h2>Examples</h2>
      <div class="examples">
        {data.classes.map((label, k) => (
          <div key={k}>
            <h3>
              {label} <small>{count(counts[k], "test image")}</small>
            </h3>
            <div class="strip">
              {data.examples[k].map((image) => (
                <Thumb thumbs={thumbs} image={image} name={images.names[image]} />
              ))}
            </div>
          </div>
        ))}
      </div>
    </section>
  );
}

const FIRST = 6;

function Curves({ site, points, classes, title, name, kind }: { site: Site; points: LearningPoint[]; classes: number; title: string; name: string; kind: "few" | "share" }) {
  const ways = [...new Set(points.map((p) => p.way))].sort((a, b) => Number(b) - Number(a));
  const presets = [...new Set(points.map((p) => p.preset))];
  const metrics = site.metrics.filter((m) => points.some((p) => m.name in p.values));
  const [way, setWay] = useState(ways[0]);
  const [preset, setPreset] = useState(presets[0]);
  const [metricName, setMetric] = useState(metrics[0].name);
  const metric = metrics.find((m) => m.name === metricName)!;
  const chosen = points.filter((p) => p.way === way && p.preset === preset && metricName in p.values);
  const last = (encoder: string) => chosen.filter((p) => runName(site, p.run) === encoder).sort((a, b) => b.x - a.x)[0]?.values[metricName][0] ?? -Infinity;
  const names = [...new Set(chosen.map((p) => runName(site, p.run)))].sort((a, b) => (metric.lower ? last(a) - last(b) : last(b) - last(a)));
  const [hidden, setHidden] = useState<Set<string>>(() => new Set(names.slice(FIRST)));
  const shown = names.filter((encoder) => !hidden.has(encoder));
  const spread = chosen.some((p) => metricName in p.spread);
  const chance = chanceLevel(metricName, classes, kind === "few" ? `${way}way` : "");
  const drawn = useMemo<CurvePoint[]>(
    () =>
      chosen
        .filter((p) => !hidden.has(runName(site, p.run)))
        .map((p) => {
          const [y, low, high] = p.values[metricName];
          const sd = p.spread[metricName];
          return { name: runName(site, p.run), x: p.x, y, low: sd === undefined ? low : y - sd, high: sd === undefined ? high : y + sd };
        }),
    [way, preset, metricName, hidden],
  );
  const toggle = (encoder: string) => setHidden((old) => new Set(old.has(encoder) ? [...old].filter((n) => n !== encoder) : [...old, encoder]));
  return (
    <Chart
      title={title}
      name={name}
      depends={[drawn]}
      paperWidth={720}
      draw={(width, palette) =>
        learningCurve(drawn, names, { xLabel: kind === "few" ? "labeled images per class" : "share of the training labels", yLabel: metric.label, format: kind === "few" ? (x) => String(x) : (x) => `${x}%`, chance }, width, palette)
      }
      controls={
        <>
          {ways.length > 1 && <Select label="Ways" value={way} options={ways.map((w) => ({ value: w, label: `${w}-way` }))} onChange={setWay} />}
          {presets.length > 1 && <Select label="Preset" value={preset} options={presets.map((p) => ({ value: p, label: p }))} onChange={setPreset} />}
          <Select label="Metric" value={metricName} options={metrics.map((m) => ({ value: m.name, label: m.label }))} onChange={setMetric} />
        </>
      }
      caption={
        <>
          <span class="chips" role="group" aria-label="Encoders shown">
            {names.map((encoder) => (
              <button type="button" key={encoder} aria-pressed={!hidden.has(encoder)} onClick={() => toggle(encoder)}>
                {encoder}
              </button>
            ))}
          </span>
          {kind === "few" && spread ? "Lines: mean over episodes. Bands: one standard deviation over episodes, which shows how much the choice of labeled images matters." : "Bands: 95% intervals."}{chanceWords(chance)}
          {shown.length > 0 && ` Highest at the right end: ${shown[0]}, ${decimals(last(shown[0]))}.`}
        </>
      }
    />
  );
}
