// Runs of language-model agents: how often they succeed, what feedback is worth, and every conversation.
import { useMemo, useState } from "preact/hooks";
import type { Site } from "../data";
import { count, percent, pValue, signed } from "../format";
import { Chart } from "../chart";
import { intervalRows, type Heading, type IntervalRow } from "../charts/intervals";
import { Conversation, jump, KINDS, type Talk } from "../conversation";
import { learningCurve, type CurvePoint } from "../charts/learning-curve";
import { Breadcrumbs, Loading, Notice, Segments, Select, TableDownloads, useData } from "../parts";
import { href, type Route } from "../route";

interface Rate {
  n: number;
  value: number;
  low: number | null;
  high: number | null;
}

interface AgentRun {
  name: string;
  agent: string;
  feedback: string;
  k: number;
  all: Rate;
  families: Record<string, Rate>;
  datasets: Record<string, Rate>;
  solvedBy: number[];
  /** Outcome, episodes, and 1 where they enter the success rate. */
  outcomes: [name: string, n: number, counted: number][];
  turns: number;
  invalid: number | null;
  tokens: number | null;
}

interface Gain {
  agent: string;
  feedback: string;
  k: number;
  n: number;
  without: number;
  with: number;
  difference: number;
  low: number | null;
  high: number | null;
  p: number | null;
}

interface Agents {
  runs: AgentRun[];
  gains: Gain[];
  trends: Record<string, { slope: number; r2: number }>;
}

type EpisodeRow = [dataset: string, id: string, success: number, turns: number, outcome: string];

const PER_FILE = 25;

/** An outcome class in words. */
function inWords(outcome: string): string {
  return outcome.replace(/_/g, " ");
}

const KNOWLEDGE: Record<string, string> = { GT: "knows the solution", no_GT: "does not know the solution" };
const FORM: Record<string, string> = { textual: "in words", binary: "only good or bad", placebo: "empty words" };

/** `gpt-4 (no_GT-textual)` in words. */
function expert(feedback: string): string {
  const match = feedback.match(/^(.*) \((GT|no_GT)-(\w+)\)$/);
  return match ? `${match[1]}, ${FORM[match[3]] ?? match[3]}, ${KNOWLEDGE[match[2]]}` : feedback;
}

/** Short names that tell the runs apart. */
function labels(runs: AgentRun[]): Map<AgentRun, string> {
  const short = (run: AgentRun) => run.agent + (run.feedback ? ` + ${run.feedback.replace(/ \([^)]*\)$/, "")}` : "");
  const long = (run: AgentRun) => run.agent + (run.feedback ? ` + ${run.feedback}` : "");
  const alike = (run: AgentRun) => runs.some((other) => short(other) === short(run) && other.feedback !== run.feedback);
  return new Map(runs.map((run) => [run, alike(run) ? long(run) : short(run)]));
}

export function AgentsPage({ site }: { site: Site }) {
  const { value: agents, error } = useData<Agents>("agents");
  if (!agents) return <Loading error={error} />;
  const runs = agents.runs;
  const episodes = runs.reduce((sum, run) => sum + run.all.n, 0);
  const budgets = [...new Set(runs.map((run) => run.k))];
  return (
    <>
      <div class="title">
        <h1>Agent runs</h1>
        <p class="lead">
          {count(new Set(runs.map((run) => run.agent)).size, "agent")}, {count(episodes, "episode")}.
        </p>
      </div>
      <RunTable site={site} agents={agents} />
      <div class="columns">
        <ByTurn runs={runs} several={budgets.length > 1} />
        <ByFamily runs={runs} />
      </div>
      {agents.gains.length > 0 && <FeedbackGain gains={agents.gains} />}
    </>
  );
}

function RunTable({ site, agents }: { site: Site; agents: Agents }) {
  const families = [...new Set(agents.runs.flatMap((run) => Object.keys(run.families)))].sort();
  const trends = Object.keys(agents.trends).length > 0;
  const order = agents.runs.map((_, k) => k).sort((a, b) => agents.runs[b].all.value - agents.runs[a].all.value);
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Success rate</h2>
        <TableDownloads
          table={() => ({
            name: "agents",
            caption: "Success rates of agents with 95% intervals, in percent.",
            header: ["agent", "feedback", "k", "episodes", "success", "low", "high", ...families, "turns", "invalid actions"],
            rows: order.map((k) => {
              const run = agents.runs[k];
              const points = (x: number | null) => (x === null ? null : Number((100 * x).toFixed(2)));
              return [run.agent, run.feedback || "none", run.k, run.all.n, points(run.all.value), points(run.all.low), points(run.all.high), ...families.map((f) => points(run.families[f]?.value ?? null)), Number(run.turns.toFixed(2)), points(run.invalid)];
            }),
          })}
        />
      </header>
      <div class="scroll">
        <table class="plain agents">
          <thead>
            <tr>
              <th scope="col">Agent</th>
              <th scope="col">Success, 95% interval</th>
              {families.map((family) => (
                <th scope="col" class="number">{family.replace(/_/g, " ")}</th>
              ))}
              <th scope="col" class="number">Turns allowed</th>
              <th scope="col" class="number">Turns used</th>
              <th scope="col" class="number">Invalid actions</th>
              {trends && <th scope="col" class="number">Per extra turn</th>}
            </tr>
          </thead>
          <tbody>
            {order.map((k) => {
              const run = agents.runs[k];
              const trend = run.feedback ? undefined : agents.trends[run.agent];
              return (
                <tr key={k}>
                  <th scope="row">
                    <a href={href("agent", [site.agents[k]])}>{run.agent}</a>
                    <small class="expert">{run.feedback ? `feedback: ${expert(run.feedback)}` : "no feedback"}</small>
                  </th>
                  <td class="rate">
                    <b>{percent(run.all.value, 1)}</b> <small>{run.all.low === null ? "" : `${percent(run.all.low, 1)} to ${percent(run.all.high!, 1)}`}</small>
                    <span class="bar" aria-hidden="true">
                      {run.all.low !== null && <i class="range" style={{ left: `${100 * run.all.low}%`, right: `${100 * (1 - run.all.high!)}%` }} />}
                      <i class="dot" style={{ left: `${100 * run.all.value}%` }} />
                    </span>
                  </td>
                  {families.map((family) => (
                    <td class="number">{run.families[family] ? percent(run.families[family].value, 1) : "–"}</td>
                  ))}
                  <td class="number">{run.k}</td>
                  <td class="number">{run.turns.toFixed(2)}</td>
                  <td class="number">{run.invalid === null ? "–" : percent(run.invalid, 1)}</td>
                  {trends && <td class="number">{trend ? signed(trend.slope, 2) : "–"}</td>}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <p class="fine">
        Success is the share of tasks solved within the turns allowed; its interval is over tasks. An action is invalid when it is neither code nor an answer.
        {trends && " Per extra turn: slope of the success rate over runs with different numbers of turns allowed, in percentage points."}
      </p>
    </section>
  );
}

function ByTurn({ runs, several }: { runs: AgentRun[]; several: boolean }) {
  const [kind, setKind] = useState(several ? "budget" : "turn");
  const called = useMemo(() => labels(runs), [runs]);
  const label = (run: AgentRun) => called.get(run)!;
  const points = useMemo<CurvePoint[]>(() => {
    if (kind === "budget") return runs.map((run) => ({ name: label(run), x: run.k, y: run.all.value, low: run.all.low, high: run.all.high }));
    const largest = Math.max(...runs.map((run) => run.k));
    return runs.filter((run) => run.k === largest).flatMap((run) => run.solvedBy.map((y, k) => ({ name: label(run), x: k + 1, y, low: null, high: null })));
  }, [kind, runs]);
  const names = [...new Set(points.map((p) => p.name))].sort((a, b) => last(points, b) - last(points, a));
  return (
    <Chart
      title={kind === "budget" ? "Success by turns allowed" : "Success after each turn"}
      name={`success_by_${kind}`}
      depends={[points]}
      draw={(width, palette) => learningCurve(points, names, { xLabel: kind === "budget" ? "turns allowed (k)" : "turns taken", yLabel: "success rate", format: String, linear: true, percent: true }, width, palette)}
      controls={several ? <Segments label="Which turns" value={kind} options={[{ value: "budget", label: "Allowed" }, { value: "turn", label: "Taken" }]} onChange={setKind} /> : undefined}
      caption={kind === "budget" ? "Every k is a run of its own: agents are told how many turns they have. Bands: 95% intervals." : "Share of all episodes of the run that had succeeded by then."}
    />
  );
}

function last(points: CurvePoint[], name: string): number {
  return points.filter((p) => p.name === name).sort((a, b) => b.x - a.x)[0].y;
}

function ByFamily({ runs }: { runs: AgentRun[] }) {
  const families = [...new Set(runs.flatMap((run) => Object.keys(run.families)))].sort();
  const datasets = [...new Set(runs.flatMap((run) => Object.keys(run.datasets)))].sort();
  const [group, setGroup] = useState("");
  const called = useMemo(() => labels(runs), [runs]);
  const budgets = new Set(runs.map((run) => run.k)).size > 1;
  const rows = useMemo<(IntervalRow | Heading)[]>(() => {
    const of = (rate: (run: AgentRun) => Rate | undefined) =>
      runs
        .flatMap((run): IntervalRow[] => {
          const found = rate(run);
          return found ? [{ name: called.get(run)! + (budgets ? `, k = ${run.k}` : ""), value: found.value, low: found.low, high: found.high, strong: true, note: count(found.n, "episode") }] : [];
        })
        .sort((a, b) => b.value - a.value);
    if (group) return of((run) => run.datasets[group]);
    return families.flatMap((family) => [{ heading: family.replace(/_/g, " ") }, ...of((run) => run.families[family])]);
  }, [runs, group]);
  return (
    <Chart
      title="Success by task family"
      name={`success_${group || "families"}`}
      depends={[rows]}
      draw={(width, palette) => intervalRows(rows, { label: group ? `success rate in ${group}` : "success rate", percent: true }, width, palette)}
      controls={<Select label="Tasks" value={group} options={[{ value: "", label: "all families" }, ...datasets.map((d) => ({ value: d, label: d, group: "One dataset" }))]} onChange={setGroup} />}
      caption="Bars are 95% intervals over tasks."
    />
  );
}

function FeedbackGain({ gains }: { gains: Gain[] }) {
  const several = new Set(gains.map((gain) => gain.k)).size > 1;
  const forms = new Set(gains.map((gain) => gain.feedback.replace(/^.* \(/, ""))).size > 1;
  const rows: IntervalRow[] = gains.map((gain) => ({ name: `${gain.agent} + ${gain.feedback.replace(/ \([^)]*\)$/, "")}${forms ? ` (${expert(gain.feedback).split(", ").slice(1).join(", ")})` : ""}${several ? `, k = ${gain.k}` : ""}`, value: gain.difference, low: gain.low, high: gain.high, strong: gain.p !== null && gain.p <= 0.05, note: `${percent(gain.without, 1)} without, ${percent(gain.with, 1)} with; ${count(gain.n, "task")}; p ${pValue(gain.p)}` }));
  return (
    <Chart
      title="Gain from feedback"
      name="feedback_gain"
      depends={[gains]}
      draw={(width, palette) => intervalRows(rows, { label: "gain in percentage points", zero: true, percent: true }, width, palette)}
      caption="Success with feedback minus success without, on the same tasks. Bars are 95% intervals of the paired difference, filled where p is at most 0.05 (not corrected for the number of rows)."
    />
  );
}

export function AgentPage({ site, route }: { site: Site; route: Route }) {
  const number = site.agents.indexOf(route.parts[0]);
  const { value: agents } = useData<Agents>("agents");
  const { value, error } = useData<{ episodes: EpisodeRow[] }>(number >= 0 ? `agent/${number}` : null);
  const [ended, setEnded] = useState("all");
  const [dataset, setDataset] = useState("all");
  const [limit, setLimit] = useState(100);
  if (number < 0) return <Notice kind="problem">This report has no such run. <a href={href("agents")}>All agent runs</a></Notice>;
  if (!value || !agents) return <Loading error={error} />;
  const run = agents.runs[number];
  const datasets = [...new Set(value.episodes.map(([name]) => name))];
  const shown = value.episodes.map((row, k) => ({ row, k })).filter(({ row }) => (ended === "all" || (ended === "success") === (row[2] === 1)) && (dataset === "all" || row[0] === dataset));
  const rows: IntervalRow[] = Object.entries(run.datasets).map(([name, rate]) => ({ name, value: rate.value, low: rate.low, high: rate.high, strong: true, note: count(rate.n, "episode") }));
  return (
    <>
      <Breadcrumbs trail={[{ label: "Agent runs", href: href("agents") }, { label: run.name }]} />
      <div class="title">
        <h1>{run.agent}</h1>
        <p class="lead">
          {percent(run.all.value, 1)} of {count(run.all.n, "episode")} solved, {run.k} turns allowed, {run.feedback ? `feedback by ${expert(run.feedback)}` : "no feedback"}
        </p>
      </div>
      <div class="columns">
        <Chart title="Success by dataset" name={`datasets_${run.name}`} depends={[rows]} draw={(width, palette) => intervalRows(rows, { label: "success rate", percent: true }, width, palette)} />
        <section class="card">
          <h2>How episodes ended</h2>
          <table class="plain ends">
            <tbody>
              {run.outcomes.map(([outcome, n, counted]) => (
                <tr>
                  <th scope="row">{inWords(outcome)}</th>
                  <td class="number">{n}</td>
                  <td class="number">{counted ? percent(n / run.all.n, 1) : "not counted"}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {run.outcomes.some(([, , counted]) => !counted) && (
            <p class="fine">Not counted: episodes that ended by an error of the checker or the provider. They are in no rate; the next run of the same command plays them again.</p>
          )}
          <p class="fine">
            {run.turns.toFixed(2)} turns on average{run.invalid !== null && `, ${percent(run.invalid, 1)} of actions invalid`}
            {run.tokens !== null && `, ${Math.round(run.tokens).toLocaleString("en")} tokens per episode`}.
          </p>
        </section>
      </div>
      <section class="card">
        <header class="figure-head">
          <h2>{count(shown.length, "episode")}</h2>
          <Segments label="Outcome" value={ended} options={[{ value: "all", label: "All" }, { value: "success", label: "Solved" }, { value: "failure", label: "Not solved" }]} onChange={setEnded} />
          <Select label="Dataset" value={dataset} options={[{ value: "all", label: "all" }, ...datasets.map((d) => ({ value: d, label: d }))]} onChange={setDataset} />
        </header>
        <ul class="episodes">
          {shown.slice(0, limit).map(({ row: [name, id, success, turns, outcome], k }) => (
            <li key={k}>
              <a href={href("episode", [run.name, String(k)])}>
                <b class={success ? "right" : "wrong"}>{success ? "✓" : "✗"}</b>
                <span class="id">
                  {name} {id}
                </span>
                <small>
                  {count(turns, "turn")}
                  {!success && `, ${inWords(outcome)}`}
                </small>
              </a>
            </li>
          ))}
        </ul>
        {limit < shown.length && (
          <p>
            <button type="button" onClick={() => setLimit(limit + 500)}>Show more ({shown.length - limit} left)</button>
          </p>
        )}
      </section>
    </>
  );
}

export function EpisodePage({ site, route }: { site: Site; route: Route }) {
  const number = site.agents.indexOf(route.parts[0]);
  const place = Number(route.parts[1]);
  const { value: list, error } = useData<{ episodes: EpisodeRow[] }>(number >= 0 ? `agent/${number}` : null);
  const { value: talks, error: talkError } = useData<Talk[]>(number >= 0 ? `talk/${number}-${Math.floor(place / PER_FILE)}` : null);
  const talk = talks?.[place % PER_FILE];
  if (number < 0 || !Number.isInteger(place) || (list && !list.episodes[place])) return <Notice kind="problem">This report has no such episode. <a href={href("agents")}>All agent runs</a></Notice>;
  if (!list || !talk) return <Loading error={error ?? talkError} />;
  const [dataset, id, success, , outcome] = list.episodes[place];
  const name = site.agents[number];
  const step = (to: number, label: string) => (list.episodes[to] ? <a href={href("episode", [name, String(to)])}>{label}</a> : <span />);
  return (
    <>
      <Breadcrumbs trail={[{ label: "Agent runs", href: href("agents") }, { label: name, href: href("agent", [name]) }, { label: `${dataset} ${id}` }]} />
      <div class="title">
        <h1>
          {dataset} <span class="on">{id}</span>
        </h1>
        <p class="lead">
          <b class={success ? "right" : "wrong"}>{success ? "✓ solved" : "✗ not solved"}</b>, {count(talk.turns.length, "turn")}
          {!success && `, ${inWords(outcome)}`}
        </p>
        <nav class="actions" aria-label="Episodes">
          {step(place - 1, "← previous")}
          {step(place + 1, "next →")}
        </nav>
      </div>
      {talk.error && <Notice kind="problem">{talk.error}</Notice>}
      <div class="conversation">
      <Conversation talk={talk} />
      <aside class="card" aria-label="Turns of this episode">
        <h2>{count(talk.turns.length, "turn")}</h2>
        <ol>
          {talk.turns.map(([, kind, , feedback], k) => (
            <li>
              <button type="button" class="link" onClick={() => jump(k + 1)}>
                Turn {k + 1}
              </button>{" "}
              <small>
                {KINDS[kind] ?? kind}
                {feedback && ", gets feedback"}
              </small>
            </li>
          ))}
        </ol>
      </aside>
      </div>
    </>
  );
}
