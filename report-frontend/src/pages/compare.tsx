// Two encoders on the same images: how much better, how sure, and on which images.
import { useEffect, useMemo, useState } from "preact/hooks";
import { boardName, load, metricsOf, runName, unitOf, unpack, type Images, type Packed, type RunData, type Site } from "../data";
import { topProbability, type Predictions } from "../curves";
import { count, decimals, pValue, percent, signed } from "../format";
import { Chart } from "../chart";
import { intervalRows, type IntervalRow } from "../charts/intervals";
import { Gallery, Thumb, useThumbs, type Tile } from "../gallery";
import { Loading, Notice, Segments, Select, TableDownloads, useData } from "../parts";
import { href, replaceQuery, runHref, type Route } from "../route";
import { predictionsOf } from "./run";

/** One entry of each column for each pair of runs; NaN where there is no number. */
interface Pairs {
  first: Packed;
  second: Packed;
  difference: Packed;
  low: Packed;
  high: Packed;
  p: Packed;
  corrected: Packed;
  holds: Packed;
}

interface TableData {
  metrics: Record<string, { test: string; note: string; count: number; pairs: Pairs }>;
  numImages: number;
  numGroups: number | null;
  resampled: string;
  problem: string;
}

interface Difference {
  difference: number | null;
  low: number | null;
  high: number | null;
  p: number | null;
  corrected: number | null;
  holds: boolean;
}

/** a - b of one metric, whichever way round the table has it. */
export function differenceOf(table: TableData, metric: string, a: number, b: number): Difference | null {
  const pairs = table.metrics[metric]?.pairs;
  if (!pairs) return null;
  const [first, second] = [unpack(pairs.first), unpack(pairs.second)];
  const k = first.findIndex((run, j) => (run === a && second[j] === b) || (run === b && second[j] === a));
  if (k < 0) return null;
  const at = (column: Packed) => numberOrNull(unpack(column)[k]);
  const [difference, low, high] = [at(pairs.difference), at(pairs.low), at(pairs.high)];
  const rest = { p: at(pairs.p), corrected: at(pairs.corrected), holds: unpack(pairs.holds)[k] === 1 };
  if (first[k] === a) return { difference, low, high, ...rest };
  return { difference: negated(difference), low: negated(high), high: negated(low), ...rest };
}

const numberOrNull = (x: number) => (Number.isNaN(x) ? null : x);
const negated = (x: number | null) => (x === null ? null : -x);

export function ComparePage({ site, route }: { site: Site; route: Route }) {
  const all = readable(site);
  const tables = useMemo(() => comparable(site), [site]);
  const boardNumber = tables.has(Number(route.query.get("board") ?? -1)) ? Number(route.query.get("board")) : [...tables.keys()][0];
  const datasets = [...(tables.get(boardNumber) ?? [])];
  const named = site.datasets.findIndex((d) => d.name === route.query.get("dataset"));
  const dataset = datasets.includes(named) ? named : datasets[0];
  const runs = all.filter((run) => site.runs.board[run] === boardNumber && site.runs.dataset[run] === dataset);
  const { value: table, error } = useData<TableData>(boardNumber === undefined ? null : `table/${boardNumber}-${dataset}`);
  if (boardNumber === undefined) return <Notice>There is nothing to compare: no task has two encoders on the same dataset.</Notice>;
  if (!table) return <Loading error={error} />;
  const find = (name: string | null) => runs.find((run) => runName(site, run) === name);
  const order = byValue(table, metricsOf(site, boardNumber)[0].name, runs);
  const a = find(route.query.get("a")) ?? order.find((run) => run !== find(route.query.get("b")))!;
  const b = find(route.query.get("b")) ?? order.find((run) => run !== a)!;
  const set = (changes: Record<string, string>) => replaceQuery(route, changes);
  const presets = new Set(site.boards.map((x) => x.preset)).size > 1;
  const options = runs.map((run) => ({ value: runName(site, run), label: runName(site, run) }));
  return (
    <>
      <div class="title">
        <h1>Compare</h1>
        <p class="lead">Two encoders on the same test images.</p>
      </div>
      <div class="toolbar" role="group" aria-label="What to compare">
        <Select label="Task" value={String(boardNumber)} options={[...tables.keys()].map((n) => ({ value: String(n), label: boardName(site.boards[n]) + (presets ? ` (${site.boards[n].preset})` : "") }))} onChange={(n) => set({ board: n })} />
        <Select label="Dataset" value={site.datasets[dataset].name} options={datasets.map((d) => ({ value: site.datasets[d].name, label: site.datasets[d].name }))} onChange={(name) => set({ dataset: name })} />
        <Select label="First" value={runName(site, a)} options={options} onChange={(name) => set({ a: name, b: name === runName(site, b) ? runName(site, a) : runName(site, b) })} />
        <Select label="Second" value={runName(site, b)} options={options.filter((option) => option.value !== runName(site, a))} onChange={(name) => set({ a: runName(site, a), b: name })} />
        <button type="button" onClick={() => set({ a: runName(site, b), b: runName(site, a) })}>Swap</button>
      </div>
      <Pair key={`${a}-${b}`} site={site} board={boardNumber} dataset={dataset} datasets={datasets} a={a} b={b} table={table} />
    </>
  );
}

/** The runs of a table by their values, highest first (lowest, for a loss): its pairs begin with the first two. */
function byValue(table: TableData, metric: string, runs: number[]): number[] {
  const pairs = table.metrics[metric]?.pairs ?? Object.values(table.metrics)[0]?.pairs;
  const known = pairs ? [...new Set([...unpack(pairs.first), ...unpack(pairs.second)])] : [];
  return [...known.filter((run) => runs.includes(run)), ...runs.filter((run) => !known.includes(run))];
}

/** Runs whose predictions could be read; of the others there is nothing to compare. */
function readable(site: Site): number[] {
  return site.runs.encoder.map((_, run) => run).filter((run) => !site.failures[run]);
}

/** Boards and their datasets with at least two runs. */
function comparable(site: Site): Map<number, Set<number>> {
  const counts = new Map<string, number>();
  readable(site).forEach((run) => {
    const key = `${site.runs.board[run]}-${site.runs.dataset[run]}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  });
  const tables = new Map<number, Set<number>>();
  for (const [key, number] of [...counts].sort(([x], [y]) => x.localeCompare(y, "en", { numeric: true }))) {
    if (number < 2) continue;
    const [board, dataset] = key.split("-").map(Number);
    tables.set(board, (tables.get(board) ?? new Set()).add(dataset));
  }
  return tables;
}

interface PairProps {
  site: Site;
  board: number;
  dataset: number;
  datasets: number[];
  a: number;
  b: number;
  table: TableData;
}

function Pair({ site, board, dataset, datasets, a, b, table }: PairProps) {
  const { value: first, error: firstError } = useData<RunData>(`run/${a}`);
  const { value: second, error: secondError } = useData<RunData>(`run/${b}`);
  const { value: images } = useData<Images>(first?.images ? `images/${first.images}` : null);
  const { value: otherImages } = useData<Images>(second?.images ? `images/${second.images}` : null);
  if (table.problem) return <Notice kind="problem">{table.problem}</Notice>;
  if (first?.target && second?.target) return <TargetPair site={site} board={board} dataset={dataset} datasets={datasets} a={a} b={b} table={table} first={first} second={second} />;
  if (!first || !second || !images || !otherImages) return <Loading error={firstError ?? secondError} />;
  return <PairView site={site} board={board} dataset={dataset} datasets={datasets} a={a} b={b} table={table} first={first} second={second} images={images} otherImages={otherImages} />;
}

interface TargetPairProps extends PairProps {
  first: RunData;
  second: RunData;
}

interface PairViewProps extends TargetPairProps {
  images: Images;
  otherImages: Images;
}

/** Two runs whose target is not a class: only their metrics. */
function TargetPair({ site, board, dataset, datasets, a, b, table, first, second }: TargetPairProps) {
  const names: [string, string] = [runName(site, a), runName(site, b)];
  const [chosen, setMetric] = useState("");
  const tested = metricsOf(site, board).filter((metric) => table.metrics[metric.name]?.count);
  const metric = tested.find((m) => m.name === chosen) ?? tested[0];
  if (!metric) return <Notice>No metric of these runs could be compared.</Notice>;
  const found = differenceOf(table, metric.name, a, b);
  return (
    <>
      {found && <Verdict table={table} metric={metric} noun={unitOf(site.boards[board])} names={names} values={[first.metrics[metric.name], second.metrics[metric.name]]} found={found} averaged={false} />}
      <Differences site={site} board={board} table={table} a={a} b={b} names={names} chosen={metric.name} onChoose={setMetric} />
      {datasets.length > 1 && <EveryDataset key={metric.name} site={site} board={board} dataset={dataset} datasets={datasets} names={names} metric={metric} />}
      <p class="fine">
        Runs: <a href={runHref(site, a)}>{names[0]}</a>, <a href={runHref(site, b)}>{names[1]}</a>
      </p>
    </>
  );
}

function PairView({ site, board, dataset, datasets, a, b, table, first, second, images, otherImages }: PairViewProps) {
  const names: [string, string] = [runName(site, a), runName(site, b)];
  const [metricName, setMetric] = useState(site.metrics[0].name);
  const tested = site.metrics.filter((metric) => table.metrics[metric.name]?.count);
  const metric = tested.find((m) => m.name === metricName) ?? tested[0];
  const p = useMemo(() => predictionsOf(first, images), [first, images]);
  const q = useMemo(() => inOrder(predictionsOf(second, otherImages), images, otherImages), [second, images, otherImages]);
  if (!metric) return <Notice>No metric of these runs could be compared.</Notice>;
  const found = differenceOf(table, metric.name, a, b);
  return (
    <>
      {found && <Verdict table={table} metric={metric} noun={unitOf(site.boards[board])} names={names} values={[first.metrics[metric.name], second.metrics[metric.name]]} found={found} averaged={first.averaged} />}
      <div class={first.classes.length <= 12 && Math.max(...first.classes.map((name) => name.length)) <= 30 ? "columns" : "stacked"}>
        <Differences site={site} board={board} table={table} a={a} b={b} names={names} chosen={metric.name} onChoose={setMetric} />
        <PerClass first={p} second={q} names={names} classes={first.classes} />
      </div>
      {datasets.length > 1 && <EveryDataset key={metric.name} site={site} board={board} dataset={dataset} datasets={datasets} names={names} metric={metric} />}
      <Disagreements site={site} data={first} images={images} first={p} second={q} names={names} />
      <p class="fine">
        Runs: <a href={runHref(site, a)}>{names[0]}</a>, <a href={runHref(site, b)}>{names[1]}</a>
      </p>
    </>
  );
}

function inOrder(p: Predictions, images: Images, own: Images): Predictions {
  // Names may repeat where the order is the same, as of runs of which only one knows the patients.
  if (images === own || images.names.every((name, k) => name === own.names[k])) return p;
  const place = new Map(own.names.map((name, k) => [name, k]));
  const order = images.names.map((name) => place.get(name)!);
  return { ...p, labels: order.map((k) => p.labels[k]), predicted: order.map((k) => p.predicted[k]), probabilities: Float64Array.from({ length: p.n * p.c }, (_, j) => p.probabilities[order[Math.floor(j / p.c)] * p.c + (j % p.c)]) };
}

interface VerdictProps {
  table: TableData;
  metric: Site["metrics"][0];
  noun: string;
  names: [string, string];
  values: [number | null, number | null];
  found: Difference;
  averaged: boolean;
}

function Verdict({ table, metric, noun, names, values, found, averaged }: VerdictProps) {
  const { holds } = found;
  const ahead = (found.difference ?? 0) * (metric.lower ? -1 : 1) >= 0 ? 0 : 1;
  const info = table.metrics[metric.name];
  const pairs = info.count;
  return (
    <section class={`card verdict ${holds ? "holds" : ""}`}>
      <h2>
        {found.corrected === null ? (
          <>The difference in {metric.label} was not tested</>
        ) : holds ? (
          <>
            <b>{names[ahead]}</b> is better than {names[1 - ahead]} in {metric.label}
          </>
        ) : (
          <>
            {names[0]} and {names[1]}: no difference shown in {metric.label}
          </>
        )}
      </h2>
      <dl class="numbers">
        <div>
          <dt>{names[0]}</dt>
          <dd>{decimals(values[0])}</dd>
        </div>
        <div>
          <dt>{names[1]}</dt>
          <dd>{decimals(values[1])}</dd>
        </div>
        <div class="main">
          <dt>difference{found.low !== null && ", 95% interval"}{found.low !== null && pairs > 1 && " (all pairs at once)"}</dt>
          <dd>
            {signed(found.difference)} {found.low !== null && <small>{signed(found.low)} to {signed(found.high)}</small>}
          </dd>
        </div>
        {found.corrected !== null && (
          <div>
            <dt>p{pairs > 1 && ", corrected for all pairs"}</dt>
            <dd>{pValue(found.corrected)}</dd>
          </div>
        )}
      </dl>
      <p class="fine">
        {!holds && found.low !== null && found.corrected !== null && `“No difference shown” does not mean “equal”: these ${noun === "patient" ? "patients" : "images"} are compatible with differences from ${signed(found.low)} to ${signed(found.high)}. `}
        {count(table.numImages, noun)}
        {table.numGroups && noun !== "patient" ? ` of ${count(table.numGroups, "group")}` : ""}. {info.note && `${info.note[0].toUpperCase()}${info.note.slice(1)}. `}
        {averaged && "Values and difference are means over episodes or training runs, as reported. "}
        <a href={href("methods")}>How differences are tested</a>
      </p>
      {found.corrected !== null && pairs > 1 && (
        <details class="fine">
          <summary>Uncorrected p of this pair alone</summary>
          <p>p = {pValue(found.p)}, not corrected for the {pairs} pairs of the table: valid only if this pair was chosen before the results were seen. The verdict does not use it.</p>
        </details>
      )}
    </section>
  );
}

function Differences({ site, board, table, a, b, names, chosen, onChoose }: { site: Site; board: number; table: TableData; a: number; b: number; names: [string, string]; chosen: string; onChoose: (metric: string) => void }) {
  const rows: (IntervalRow & { metric: string })[] = [];
  const offered = metricsOf(site, board).filter((metric) => table.metrics[metric.name]?.count);
  // Errors have their own unit, and less of them is better: they are not drawn beside the others.
  for (const metric of offered.filter((m) => !m.lower)) {
    const found = differenceOf(table, metric.name, a, b);
    if (found && found.difference !== null) rows.push({ metric: metric.name, name: metric.label, value: found.difference, low: found.low, high: found.high, strong: found.holds, note: `p (corrected) ${pValue(found.corrected)}` });
  }
  return (
    <Chart
      title="Difference in every metric"
      name={`difference_${names.join("_")}`}
      depends={[rows]}
      draw={(width, palette) => intervalRows(rows, { sides: [`${names[1]} better`, `${names[0]} better`], zero: true }, width, palette)}
      controls={<Select label="Headline" value={chosen} options={offered.map((m) => ({ value: m.name, label: m.label }))} onChange={onChoose} />}
      caption={rows.some((row) => row.low !== null) ? "Filled: a difference is shown. Intervals hold for all pairs of the table at once; a metric without an interval was not tested." : "None of these differences was tested."}
    />
  );
}

function recalls(p: Predictions): { right: number[]; images: number[] } {
  const right = new Array<number>(p.c).fill(0);
  const images = new Array<number>(p.c).fill(0);
  for (let i = 0; i < p.n; i++) {
    images[p.labels[i]]++;
    if (p.labels[i] === p.predicted[i]) right[p.labels[i]]++;
  }
  return { right, images };
}

function PerClass({ first, second, names, classes }: { first: Predictions; second: Predictions; names: [string, string]; classes: string[] }) {
  const [x, y] = [recalls(first), recalls(second)];
  const rows = classes.map((name, k) => ({ name, images: x.images[k], a: x.right[k] / x.images[k], b: y.right[k] / x.images[k] }));
  const widest = Math.max(...rows.map((row) => Math.abs(row.a - row.b) || 0), 0.02);
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Recall of each class</h2>
        <TableDownloads table={() => ({ name: `classes_${names.join("_")}`, caption: `Recall of each class: ${names.join(" and ")}.`, header: ["class", "images", names[0], names[1], "difference"], rows: rows.map((row) => [row.name, row.images, row.images ? row.a : null, row.images ? row.b : null, row.images ? row.a - row.b : null]) })} />
      </header>
      <div class="scroll">
        <table class="plain deltas">
          <thead>
            <tr>
              <th scope="col">Class</th>
              <th scope="col" class="number">{names[0]}</th>
              <th scope="col" class="number">{names[1]}</th>
              <th scope="col" class="number">Difference</th>
              <th scope="col" aria-hidden="true" class="drawn" />
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <th scope="row">
                  {row.name} <small>{row.images}</small>
                </th>
                <td class="number">{percent(row.a, 1)}</td>
                <td class="number">{percent(row.b, 1)}</td>
                <td class="number">
                  <b>{signed(100 * (row.a - row.b), 1)}</b>
                </td>
                <td class="drawn" aria-hidden="true">
                  <span class="delta">
                    <i class={row.a >= row.b ? "more" : "less"} style={{ width: `${(50 * Math.abs(row.a - row.b || 0)) / widest}%` }} />
                  </span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="fine">In percentage points, without a test: with few images a class can differ by chance.</p>
    </section>
  );
}

function EveryDataset({ site, board, dataset, datasets, names, metric }: { site: Site; board: number; dataset: number; datasets: number[]; names: [string, string]; metric: Site["metrics"][0] }) {
  const [asked, setAsked] = useState(datasets.length <= 12);
  const [rows, setRows] = useState<IntervalRow[] | null>(null);
  useEffect(() => {
    if (!asked) return;
    const runs = readable(site).filter((run) => site.runs.board[run] === board);
    const find = (d: number, name: string) => runs.find((run) => site.runs.dataset[run] === d && runName(site, run) === name) ?? -1;
    const both = datasets.filter((d) => names.every((name) => find(d, name) >= 0));
    void Promise.all(both.map((d) => load<TableData>(`table/${board}-${d}`))).then((tables) =>
      setRows(
        tables.flatMap((table, k) => {
          const found = differenceOf(table, metric.name, find(both[k], names[0]), find(both[k], names[1]));
          return found && found.difference !== null ? [{ name: site.datasets[both[k]].name, value: found.difference, low: found.low, high: found.high, strong: found.holds, note: `p (corrected) ${pValue(found.corrected)}` }] : [];
        }),
      ),
    );
  }, [asked]);
  if (!asked)
    return (
      <section class="card">
        <button type="button" onClick={() => setAsked(true)}>
          Compare on all {datasets.length} datasets
        </button>
      </section>
    );
  if (!rows || rows.length < 2) return null;
  const holding = rows.filter((row) => row.strong);
  const wins = holding.filter((row) => row.value * (metric.lower ? -1 : 1) > 0).length;
  return (
    <Chart
      title={`On every dataset: ${metric.label}`}
      name={`datasets_${names.join("_")}_${metric.name}`}
      depends={[rows, dataset]}
      draw={(width, palette) => intervalRows(rows, { sides: [`${names[1]} ${metric.lower ? "higher" : "better"}`, `${names[0]} ${metric.lower ? "higher" : "better"}`], zero: true }, width, palette)}
      caption={`${names[0]} is better on ${wins}, ${names[1]} on ${holding.length - wins}, no difference shown on ${rows.length - holding.length} of ${count(rows.length, "dataset")} (corrected for all pairs within each).`}
    />
  );
}

function Disagreements({ site, data, images, first, second, names }: { site: Site; data: RunData; images: Images; first: Predictions; second: Predictions; names: [string, string] }) {
  const thumbs = useThumbs(site, data.images);
  const [kind, setKind] = useState("first");
  const [open, setOpen] = useState<number | null>(null);
  const sets = useMemo(() => {
    const found: Record<"first" | "second" | "neither" | "both", number[]> = { first: [], second: [], neither: [], both: [] };
    for (let i = 0; i < first.n; i++) {
      const [x, y] = [first.predicted[i] === first.labels[i], second.predicted[i] === first.labels[i]];
      found[x && y ? "both" : x ? "first" : y ? "second" : "neither"].push(i);
    }
    return found;
  }, [first, second]);
  const chosen = sets[kind as keyof typeof sets];
  const tiles = useMemo<Tile[]>(() => {
    const wrong = kind === "first" ? second : first;
    return chosen.map((image) => ({ image, label: data.classes[first.labels[image]], predicted: data.classes[wrong.predicted[image]], confidence: topProbability(wrong, image), wrong: true })).sort((x, y) => y.confidence! - x.confidence!);
  }, [kind, sets]);
  const labels = { first: `Only ${names[0]} right`, second: `Only ${names[1]} right`, neither: "Both wrong" };
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Images</h2>
        <Segments label="Which images" value={kind} options={(["first", "second", "neither"] as const).map((key) => ({ value: key, label: `${labels[key]} (${sets[key].length})` }))} onChange={setKind} />
      </header>
      <p class="fine">
        Both right: {sets.both.length}. Shown is what {kind === "first" ? names[1] : names[0]} says, its most confident mistakes first.
      </p>
      <Gallery tiles={tiles} images={images} thumbs={thumbs} onOpen={(image) => setOpen(image)} empty="There is none." />
      {open !== null && (
        <TwoSays images={images} thumbs={thumbs} image={open} classes={data.classes} first={first} second={second} names={names} onClose={() => setOpen(null)} />
      )}
    </section>
  );
}

function TwoSays({ images, thumbs, image, classes, first, second, names, onClose }: { images: Images; thumbs: ReturnType<typeof useThumbs>; image: number; classes: string[]; first: Predictions; second: Predictions; names: [string, string]; onClose: () => void }) {
  return (
    <dialog class="image-dialog" open={false} ref={(element) => { if (element && !element.open) element.showModal(); }} onClose={onClose} aria-label={images.names[image]}>
      <div class="inside">
        <Thumb thumbs={thumbs} image={image} name={images.names[image]} />
        <div>
          <h3>{images.names[image]}</h3>
          <p>
            is <b>{classes[first.labels[image]]}</b>
          </p>
          <ul class="bars">
            {[first, second].map((p, k) => (
              <li class={p.predicted[image] === p.labels[image] ? "true" : undefined}>
                <span>{names[k]}</span>
                <span>
                  {classes[p.predicted[image]]} {p.predicted[image] === p.labels[image] ? "✓" : "✗"}
                </span>
                <em>{percent(topProbability(p, image))}</em>
              </li>
            ))}
          </ul>
          <form method="dialog">
            <button autoFocus>Close</button>
          </form>
        </div>
      </div>
    </dialog>
  );
}


