// Encoders x datasets: the answer, values with intervals, ranks, and what an encoder costs.
import { useMemo, useState } from "preact/hooks";
import { boardName, metricsOf, unitOf, type Board, type BoardMetric, type Encoder, type Metric, type Site, type Winner } from "../data";
import { decimals, interval, pValue, count } from "../format";
import { Coded, CopyBox, Loading, Segments, Select, TableDownloads, termsLabel, useData } from "../parts";
import { href, replaceQuery, runHref, type Route } from "../route";
import { Chart, useMedia } from "../chart";
import { chanceLevel, chanceWords } from "../chance";
import { useGrid } from "../grid";
import { criticalDifference } from "../charts/critical-difference";
import { frontier, pareto, type CostPoint } from "../charts/pareto";

/** Whether the differences of a column were tested. */
function tested(data: BoardMetric, column: number): boolean {
  return data.standing.some((row) => row[column] !== 0);
}

interface Row {
  index: number;
  name: string;
  encoder: Encoder;
  rank: number | null;
  mean: number | null;
}

export function Leaderboard({ site, route }: { site: Site; route: Route }) {
  const boardNumber = Math.min(Number(route.query.get("board") ?? 0) || 0, site.boards.length - 1);
  const metrics = metricsOf(site, boardNumber);
  const metric = metrics.find((m) => m.name === route.query.get("metric")) ?? metrics[0];
  const { value: board, error } = useData<Board>(`board/${boardNumber}`);
  const set = (changes: Record<string, string | undefined>) => replaceQuery(route, changes);
  const facts = site.boards[boardNumber];
  const tasks = [...new Set(site.boards.map((b) => b.task))];
  const settings = site.boards.map((b, number) => ({ ...b, number })).filter((b) => b.task === facts.task && b.preset === facts.preset);
  const presets = [...new Set(site.boards.filter((b) => b.task === facts.task).map((b) => b.preset))];
  const find = (task: string, preset: string, setting?: string) => {
    const matches = (b: { task: string; preset: string; setting: string }) => b.task === task && b.preset === preset && (setting === undefined || b.setting === setting);
    const exact = site.boards.findIndex(matches);
    const number = exact >= 0 ? exact : site.boards.findIndex((b) => b.task === task);
    set({ board: String(number) });
  };
  const licence = route.query.get("licence") ?? "all";
  const search = route.query.get("find") ?? "";
  const kinds = [...new Set(site.encoders.map((encoder) => encoder.terms))];
  return (
    <>
      <div class="title">
        <h1>Leaderboard</h1>
        <p class="lead">
          {count(site.encoders.length, "encoder")} on {count(site.datasets.length, "dataset")}, {count(site.runs.encoder.length, "run")}.
        </p>
      </div>
      <div class="toolbar" role="group" aria-label="What to show">
        <Select label="Task" value={facts.task} options={tasks.map((task) => ({ value: task, label: task }))} onChange={(task) => find(task, facts.preset)} />
        {settings.length > 1 && (
          <Select label="Setting" value={facts.setting} options={settings.map((b) => ({ value: b.setting, label: boardName({ ...b, task: "" }).trim() }))} onChange={(setting) => find(facts.task, facts.preset, setting)} />
        )}
        <Select label="Metric" value={metric.name} options={metrics.map((m) => ({ value: m.name, label: m.label }))} onChange={(name) => set({ metric: name })} />
        {presets.length > 1 && <Select label="Preset" value={facts.preset} options={presets.map((p) => ({ value: p, label: p }))} onChange={(preset) => find(facts.task, preset, facts.setting)} />}
        {kinds.length > 1 && (
          <Select label="License" value={licence} options={[{ value: "all", label: "all" }, ...kinds.map((kind) => ({ value: kind, label: termsLabel(kind) }))]} onChange={(kind) => set({ licence: kind === "all" ? undefined : kind })} />
        )}
        <label class="control">
          <span>Find</span>
          <input type="search" value={search} placeholder="encoder" onInput={(event) => set({ find: event.currentTarget.value || undefined })} />
        </label>
      </div>
      {board ? <BoardView key={boardNumber} site={site} board={board} metric={metric} setting={facts.setting} title={boardName(facts)} licence={licence} search={search} /> : <Loading error={error} />}
    </>
  );
}

function BoardView({ site, board, metric, setting, title, licence, search }: { site: Site; board: Board; metric: Metric; setting: string; title: string; licence: string; search: string }) {
  const data = board.metrics[metric.name];
  const rows = useMemo(() => makeRows(site, board, data), [board, data]);
  const shown = rows.filter((row) => (licence === "all" || row.encoder.terms === licence) && row.name.toLowerCase().includes(search.toLowerCase()));
  const ranking = data.ranking;
  return (
    <>
      {data.answer && (
        <section class="card answer" aria-label="Answer">
          <h2>Answer</h2>
          <p><Coded text={data.answer} /></p>
          {data.over && <p class="fine">The answer is over {data.over} and uses all patients. The table below is of one test set, whose values can differ by chance.</p>}
          {data.commands.map((command) => <CopyBox label="Command that gives it" text={command} />)}
        </section>
      )}
      <BoardTable site={site} board={board} metric={metric} data={data} rows={shown} title={title} />
      {shown.length < rows.length && (
        <p class="fine">
          {rows.length - shown.length} of {count(rows.length, "encoder")} hidden by the filters. Ranks and ties always take all of them into account.
        </p>
      )}
      <Notes site={site} board={board} data={data} metric={metric} />
      <div class="columns">
        {ranking ? (
          <Chart
            title="Mean rank and critical difference"
            name={`critical-difference_${title}_${metric.name}`}
            depends={[ranking]}
            draw={(width, palette) => criticalDifference(ranking, ranking.rows.map((r) => board.rows[r]), width, palette)}
            caption={
              <>
                Encoders joined by a bar do not differ significantly: their mean ranks over {count(ranking.numDatasets, "dataset")} are less than {decimals(ranking.criticalDifference, 2)} apart (Nemenyi, {site.alpha}).{" "}
                {ranking.friedmanP > site.alpha ? (
                  <strong>Friedman’s test does not show that the encoders differ (p = {pValue(ranking.friedmanP)}): the order may be chance.</strong>
                ) : (
                  <>Friedman’s test: p {ranking.friedmanP < 0.001 ? "" : "= "}{pValue(ranking.friedmanP)}.</>
                )}
                {ranking.numDatasets < 5 && " With fewer than five datasets, mean ranks rarely differ significantly."}
                {ranking.leftOut.length > 0 && ` Not run on all of these datasets, so without a rank: ${ranking.leftOut.join(", ")}.`}
                {ranking.leftOutColumns.length > 0 && ` Left out, because too few encoders were run on them: ${ranking.leftOutColumns.map((k) => site.datasets[board.datasets[k]].name).join(", ")}.`}
              </>
            }
          />
        ) : null}
        <CostView site={site} board={board} setting={setting} metric={metric} data={data} title={title} />
      </div>
    </>
  );
}

function makeRows(site: Site, board: Board, data: BoardMetric): Row[] {
  const rank = new Map(data.ranking?.rows.map((row, k) => [row, data.ranking!.ranks[k]]));
  return board.rows.map((name, index) => {
    const run = board.runs[index].find((number) => number >= 0)!;
    const values = data.value[index];
    const whole = values.every((value) => value !== null);
    return {
      index,
      name,
      encoder: site.encoders[site.runs.encoder[run]],
      rank: rank.get(index) ?? null,
      mean: whole ? values.reduce((sum: number, value) => sum + value!, 0) / values.length : null,
    };
  });
}

type SortKey = "name" | "rank" | "mean" | "robust" | number;

function BoardTable({ site, board, metric, data, rows, title }: { site: Site; board: Board; metric: Metric; data: BoardMetric; rows: Row[]; title: string }) {
  const several = board.datasets.length > 1;
  const narrow = useMedia("(max-width: 700px)");
  const [sort, setSort] = useState<{ key: SortKey; up: boolean }>({ key: several && data.ranking ? "rank" : several ? "mean" : 0, up: several && data.ranking ? true : metric.lower });
  const [column, setColumn] = useState(0);
  const sorted = useMemo(() => sortRows(rows, data, sort), [rows, data, sort]);
  const domain = useMemo(() => domainOf(data), [data]);
  const below = data.value.flat().some((value) => value !== null && value < domain[0]);
  const beyond = data.value.flat().some((value) => value !== null && value > domain[1]);
  const columns = narrow ? [Math.min(column, board.datasets.length - 1)] : board.datasets.map((_, k) => k);
  const grid = useGrid();
  const first = board.runs.flat().find((run) => run >= 0);
  const noun = first !== undefined && unitOf(site.boards[site.runs.board[first]]) === "patient" ? "patient" : "image";
  const robust = site.robustnessIndex && rows.some((row) => row.encoder.robustness != null) ? `by ${site.robustnessIndex.column} on ${site.robustnessIndex.dataset}` : "";
  const by = (key: SortKey) => {
    const up = key === "name" || key === "rank" || (key !== "robust" && metric.lower);
    setSort((old) => ({ key, up: old.key === key ? !old.up : up }));
  };
  const header = (key: SortKey, label: string, extra?: string, className?: string, more?: string) => (
    <th scope="col" class={className} aria-sort={sort.key === key ? (sort.up ? "ascending" : "descending") : undefined}>
      <button type="button" onClick={() => by(key)}>
        <span>{label}</span>
        <i aria-hidden="true">{sort.key === key ? (sort.up ? "▲" : "▼") : ""}</i>
      </button>
      {extra && <small>{extra}</small>}
      {more && <small>{more}</small>}
    </th>
  );
  const table = () => ({
    name: `leaderboard_${title}_${metric.name}`,
    caption: `${title}: ${metric.label} with 95% intervals. ${data.mayBeBest.flat().some(Boolean) ? `* may be the best of its column (intervals of differences that hold for all pairs at once, max-t, ${100 * (1 - site.alpha)}%).` : "Differences were not tested."}`,
    header: ["encoder", ...(several ? ["mean rank", "mean"] : []), ...(robust ? [`robustness index ${robust}`, "low", "high"] : []), ...board.datasets.map((d) => site.datasets[d].name)],
    rows: sorted.map((row) => [
      row.name,
      ...(several ? [row.rank, row.mean === null ? null : Number(row.mean.toFixed(4))] : []),
      ...(robust ? (row.encoder.robustness ?? [null, null, null]) : []),
      ...board.datasets.map((_, k) => cellText(data, row.index, k)),
    ]),
  });
  return (
    <section class="card board" aria-label={`${title}: ${metric.label}`}>
      <header class="figure-head">
        <h2>
          {title}: {metric.label}
          {metric.lower && <em> (lower is better)</em>}
        </h2>
        {narrow && several && (
          <Select label="Dataset" value={String(columns[0])} options={board.datasets.map((d, k) => ({ value: String(k), label: site.datasets[d].name }))} onChange={(k) => { setColumn(Number(k)); setSort({ key: Number(k), up: metric.lower }); }} />
        )}
        <TableDownloads table={table} />
      </header>
      <p class="legend" aria-label="Legend">
        {data.mayBeBest.flat().some(Boolean) && <span><b class="mark best">●</b> may be the best: not shown to be worse than the first (<a href={href("methods")}>how this is tested</a>)</span>}
        <span><i class="legend-interval" aria-hidden="true"><i /></i> {data.low.flat().some((low) => low !== null) ? "95% interval" : "value, without an interval"}, drawn from {decimals(domain[0], 2)} to {decimals(domain[1], 2)} in every cell{below && "; ◂ lies below"}{beyond && "; ▸ lies above"}</span>
      </p>
      <div class="scroll" tabIndex={-1}>
        <table class={`leaderboard ${columns.length <= 3 ? "wide" : ""}`} ref={grid} aria-describedby="board-keys">
          <thead>
            <tr>
              {header("name", "Encoder", undefined, "sticky")}
              {several && header("rank", narrow ? "Rank" : "Mean rank", undefined, "number")}
              {several && !narrow && header("mean", "Mean", undefined, "number")}
              {robust && !narrow && header("robust", "Robustness index", robust, "number")}
              {columns.map((k) => header(k, site.datasets[board.datasets[k]].name, `${count(board.numImages[k], noun)}${board.numGroups[k] && noun !== "patient" ? `, ${count(board.numGroups[k]!, "group")}` : ""}`, "dataset", metric.tested && board.rows.length > 1 && !tested(data, k) ? "not tested" : undefined))}
            </tr>
          </thead>
          <tbody>
            {sorted.map((row) => (
              <tr key={row.name}>
                <th scope="row" class="sticky">
                  <span class="encoder">{row.name}</span>
                  <small class={`terms ${row.encoder.terms}`} title={row.encoder.licence || undefined}>{termsLabel(row.encoder.terms)}</small>
                </th>
                {several && <td class="number">{decimals(row.rank, 2)}</td>}
                {several && !narrow && <td class="number">{decimals(row.mean)}</td>}
                {robust && !narrow && <td class="number"><a href={href("robustness")} title={`Robustness index ${robust}: share of neighbors of the same tissue from another site, among those that share either`}>{decimals(row.encoder.robustness?.[0])}{row.encoder.robustness?.[1] != null && <small> [{decimals(row.encoder.robustness[1])}, {decimals(row.encoder.robustness[2])}]</small>}</a></td>}
                {columns.map((k) => (
                  <ValueCell key={k} site={site} run={board.runs[row.index][k]} name={row.name} dataset={site.datasets[board.datasets[k]].name} value={data.value[row.index][k]} low={data.low[row.index][k]} high={data.high[row.index][k]} ranks={data.ranks[row.index][k]} mayBeBest={Boolean(data.mayBeBest[row.index][k])} told={data.mayBeBest.some((other, r) => !other[k] && data.value[r][k] !== null)} domain={domain} />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p id="board-keys" class="sr">Use the arrow keys to move between values and Enter to open a run.</p>
    </section>
  );
}

interface CellProps {
  site: Site;
  run: number;
  name: string;
  dataset: string;
  value: number | null;
  low: number | null;
  high: number | null;
  ranks: [number, number] | null;
  mayBeBest: boolean;
  /** Whether another of the column is shown to be worse. */
  told: boolean;
  domain: [number, number];
}

function ValueCell({ site, run, name, dataset, value, low, high, ranks, mayBeBest, told, domain }: CellProps) {
  if (run < 0) return <td class="value none">–</td>;
  const share = (x: number) => (x - domain[0]) / (domain[1] - domain[0]);
  const at = (x: number) => `${(100 * Math.min(1, Math.max(0, share(x)))).toFixed(1)}%`;
  const outside = value === null ? "" : share(value) < 0 ? "below" : share(value) > 1 ? "above" : "";
  // Where nothing is shown to be worse, a color on every value would say nothing.
  const mark = mayBeBest && told ? "best" : "";
  const place = ranks === null ? "" : `, true rank ${ranks[0] === ranks[1] ? ranks[0] : `${ranks[0]} to ${ranks[1]}`} (all encoders at once)`;
  const said = (mayBeBest ? ", may be the best" : "") + place;
  return (
    <td class={`value ${mark}`}>
      <a href={runHref(site, run)} data-cell tabIndex={-1} aria-label={`${name} on ${dataset}: ${decimals(value)}, 95% interval ${interval(low, high)}${said}`} title={`95% interval ${interval(low, high)}${place}`}>
        <span class="figures">
          {decimals(value)}
          <b class="mark best">{mayBeBest ? "●" : ""}</b>
        </span>
        <span class="bar" aria-hidden="true">
          {low !== null && high !== null && !outside && <i class="range" style={{ left: at(low), right: `calc(100% - ${at(high)})` }} />}
          {value !== null && (outside ? <i class={`outside ${outside}`}>{outside === "below" ? "◂" : "▸"}</i> : <i class="dot" style={{ left: at(value) }} />)}
        </span>
      </a>
    </td>
  );
}

function sortRows(rows: Row[], data: BoardMetric, sort: { key: SortKey; up: boolean }): Row[] {
  const of = (row: Row): string | number | null => (sort.key === "name" ? row.name.toLowerCase() : sort.key === "rank" ? row.rank : sort.key === "mean" ? row.mean : sort.key === "robust" ? (row.encoder.robustness?.[0] ?? null) : data.value[row.index][sort.key]);
  const sign = sort.up ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === null || y === null) return x === y ? a.index - b.index : x === null ? 1 : -1;
    return x < y ? -sign : x > y ? sign : a.index - b.index;
  });
}

/** One scale for all cells. Stragglers do not squeeze the rest: they stand at the left edge with an arrow. */
function domainOf(data: BoardMetric): [number, number] {
  const numbers = [data.low, data.high, data.value].flat(2).filter((value): value is number => value !== null).sort((a, b) => a - b);
  if (!numbers.length) return [0, 1];
  const quantile = (share: number) => numbers[Math.round(share * (numbers.length - 1))];
  const spread = Math.max(quantile(0.75) - quantile(0.25), 0.01);
  const low = Math.max(numbers[0], quantile(0.25) - spread);
  const high = Math.min(numbers[numbers.length - 1], quantile(0.75) + 2 * spread);
  const room = (high - low) * 0.04;
  // The scale does not go where no value can be.
  const largest = numbers[numbers.length - 1] <= 1 ? 1 : Infinity;
  return [numbers[0] >= 0 ? Math.max(0, low - room) : low - room, Math.min(largest, high + room)];
}

function cellText(data: BoardMetric, row: number, column: number): string | null {
  const value = data.value[row][column];
  if (value === null) return null;
  const low = data.low[row][column];
  const star = data.mayBeBest[row][column] ? "*" : "";
  return `${value.toFixed(3)}${star}${low === null ? "" : ` [${low.toFixed(3)}, ${data.high[row][column]!.toFixed(3)}]`}`;
}

function Notes({ site, board, data, metric }: { site: Site; board: Board; data: BoardMetric; metric: Metric }) {
  const notes = new Map<string, string[]>();
  board.datasets.forEach((d, k) => {
    for (const note of [data.tests[k][1], board.problems[k]]) if (note) notes.set(note, [...(notes.get(note) ?? []), site.datasets[d].name]);
  });
  const lacking = data.value.some((row, r) => row.some((value, c) => value !== null && data.low[r][c] === null));
  return (
    <div class="fine notes">
      <Winners site={site} board={board} data={data} />
      {lacking &&
        (metric.name === "ece" ? (
          <p>A calibration error has no interval: it is biased upward by an amount that depends on the number of images, and no known interval reaches its nominal coverage.</p>
        ) : (
          <p>A value without an interval has too few patients, images or mistakes for one; its own page says which.</p>
        ))}
      {[...notes].map(([note, names]) => (
        <p>
          {names.length < board.datasets.length ? `${names.join(", ")}: ` : ""}
          {note}.
        </p>
      ))}
    </div>
  );
}

/** The winner's value of each dataset, corrected for having been picked. */
function Winners({ site, board, data }: { site: Site; board: Board; data: BoardMetric }) {
  const known = board.datasets.map((d, k) => ({ name: site.datasets[d].name, k, winner: data.winners[k] })).filter(({ k, winner }) => winner && winner.low !== null && board.rows.filter((_, r) => data.value[r][k] !== null).length > 2);
  if (!known.length) return null;
  const sentence = (k: number, winner: Winner) => `Quote ${decimals(winner.value)} [${interval(winner.low, winner.high)}] for ${board.rows[winner.row]}: it is corrected for being the first of several. The table shows the measured ${decimals(data.value[winner.row][k])} with the interval of a single encoder, which is biased upward.`;
  return (
    <details class="best" open={known.length <= 3}>
      <summary>What to quote for the first encoder</summary>
      <dl>
        {known.map(({ name, k, winner }) => (
          <>
            <dt>{name}</dt>
            <dd>{sentence(k, winner!)}</dd>
          </>
        ))}
      </dl>
    </details>
  );
}

const COSTS: { value: "gflops" | "params" | "speed"; label: string; axis: string; lower: boolean }[] = [
  { value: "gflops", label: "GFLOPs", axis: "GFLOPs per image", lower: true },
  { value: "params", label: "Parameters", axis: "parameters", lower: true },
  { value: "speed", label: "Images/s", axis: "images per second", lower: false },
];

function CostView({ site, board, setting, metric, data, title }: { site: Site; board: Board; setting: string; metric: Metric; data: BoardMetric; title: string }) {
  const known = COSTS.filter((cost) => site.encoders.some((encoder) => encoder[cost.value]));
  const [chosen, setChosen] = useState(known[0]?.value ?? "gflops");
  const [dataset, setDataset] = useState("mean");
  if (!known.length) return null;
  const cost = known.find((c) => c.value === chosen) ?? known[0];
  const k = board.datasets.length === 1 ? 0 : dataset === "mean" ? -1 : Number(dataset);
  const points: CostPoint[] = [];
  for (const row of makeRows(site, board, data)) {
    const x = row.encoder[cost.value];
    const y = k < 0 ? row.mean : data.value[row.index][k];
    if (x && y !== null) points.push({ name: row.name, x, y, low: k < 0 ? null : data.low[row.index][k], high: k < 0 ? null : data.high[row.index][k] });
  }
  if (!points.length) return null;
  const levels = board.datasets.filter((_, place) => k < 0 || place === k).map((d) => chanceLevel(metric.name, site.datasets[d].classes, setting));
  const chance = levels.some((level) => level === null) ? null : levels.reduce((sum: number, level) => sum + level!, 0) / levels.length;
  const axes = { xLabel: cost.axis, yLabel: metric.label, lowerX: cost.lower, lowerY: metric.lower, chance };
  const best = frontier(points, axes);
  const options = [{ value: "mean", label: "mean of datasets" }, ...board.datasets.map((d, k) => ({ value: String(k), label: site.datasets[d].name }))];
  return (
    <Chart
      title={`${metric.label[0].toUpperCase()}${metric.label.slice(1)} against cost`}
      name={`cost_${title}_${metric.name}_${cost.value}`}
      depends={[points, cost.value, metric.name]}
      draw={(width, palette) => pareto(points, axes, width, palette)}
      controls={
        <>
          {known.length > 1 && <Segments label="Cost" value={cost.value} options={known} onChange={(value) => setChosen(value as typeof chosen)} />}
          {board.datasets.length > 1 && <Select label="Value" value={dataset} options={options} onChange={setDataset} />}
        </>
      }
      caption={
          <>{points.length === 1 ? "" : best.length === 1 ? `${best[0].name} is ${cost.lower ? "cheapest" : "fastest"} and has the ${metric.lower ? "lowest" : "highest"} measured value. ` : `The line joins encoders without another that is ${cost.lower ? "cheaper" : "faster"} and has a measured value at least as ${metric.lower ? "low" : "high"}; this is not a test. `}{cost.value === "speed" && `Measured while the features were computed, forward pass only, on ${site.speedDevice}. `}{board.rows.length - points.length > 0 && `Without known cost or value: ${count(board.rows.length - points.length, "encoder")}.`}{chanceWords(chance)}</>
      }
    />
  );
}
