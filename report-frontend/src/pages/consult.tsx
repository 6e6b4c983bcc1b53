// Consult: agents that may ask an image encoder. Better than the tool alone? And do they know when to trust it?
import { useMemo, useState } from "preact/hooks";
import type { Site } from "../data";
import { count, decimals, interval, percent, pValue, signed } from "../format";
import { Chart } from "../chart";
import { dumbbell, type DumbbellRow } from "../charts/dumbbell";
import { intervalRows, type Heading, type IntervalRow } from "../charts/intervals";
import { reliance, riskCoverage, trustPlane, type RelianceBin, type RiskCurve, type TrustPoint } from "../charts/trust";
import { Loading, Notice, Segments, Select, TableDownloads, useData } from "../parts";
import { href, replaceQuery, type Route } from "../route";
import { Failures } from "./failures";

export type Value = [value: number | null, low: number | null, high: number | null];

export interface Line {
  agent: string;
  arm: string;
  cases: number;
  repeats: number;
  effective: number;
  effectiveWrong: number;
  values: Record<string, Value>;
  plain: Record<string, number | null>;
  reliance: { right: RelianceBin[]; wrong: RelianceBin[] };
  risk: [number, number][] | null;
  failures: Record<string, number>;
}

interface Contrast {
  agent: string;
  name: string;
  words: string;
  registered: string;
  inAdvance: boolean;
  groups: number;
  effective: number;
  value: Value;
  p: number | null;
  adjusted: number | null;
  reason: string;
}

interface Sequences {
  length: number;
  change: number;
  until: (number | null)[];
  median: number | null;
  falseAlarms: number | null;
  parts: { part: "before" | "after"; measure: string; changed: Value; same: Value | null; difference: Value | null }[];
}

export interface Study {
  name: string;
  dataset: string;
  classes: string[];
  trueClasses: string[] | null;
  cases: number;
  groups: number | null;
  cautions: string[];
  encoders: { role: string; name: string; probe: number; knn: number }[];
  arms: { name: string; words: string }[];
  agents: string[];
  lines: Line[];
  sequences: Record<string, Sequences>;
  blinding: { first: string; second: string; auc: [number, number, number] }[];
  contrasts: Contrast[];
  reader: { agent: string; arm: string; beats: boolean; text: string }[];
  usefulness: Record<string, { encoders: number; probe: number | null; knn: number | null }>;
  doseSlope: Record<string, number | null>;
}

const POLICY = "policy-";
const POLICIES: Record<string, string> = {
  "policy-always-trust": "always trusts the tool",
  "policy-never-trust": "keeps its first answer",
  "policy-learner": "trusts by what it has seen of the tool",
  "policy-reader": "logistic regression on the numbers shown",
  "policy-rational": "trusts by calibrated confidence",
  "policy-oracle": "right if tool or first answer is",
  "policy-random": "guesses",
};

const isPolicy = (agent: string) => agent.startsWith(POLICY);
const short = (agent: string) => (isPolicy(agent) ? agent.slice(POLICY.length) : agent);

export function ConsultPage({ site, route }: { site: Site; route: Route }) {
  const number = Math.max(0, site.consult.indexOf(route.query.get("study") ?? site.consult[0]));
  const { value: study, error } = useData<Study>(site.consult.length ? `consult/${number}` : null);
  if (!site.consult.length) return <Notice kind="problem">This report has no Consult study. <a href={href("")}>Go to the start</a></Notice>;
  if (!study) return <Loading error={error} />;
  return <StudyPage key={number} site={site} study={study} number={number} route={route} />;
}

function StudyPage({ site, study, number, route }: { site: Site; study: Study; number: number; route: Route }) {
  const agent = study.agents.includes(route.query.get("agent") ?? "") ? route.query.get("agent")! : (study.agents.find((name) => !isPolicy(name) || name === "policy-reader") ?? study.agents[0]);
  const arms = study.arms.map((arm) => arm.name).filter((arm) => study.lines.some((line) => line.arm === arm));
  const played = arms.filter((arm) => study.lines.some((line) => line.arm === arm && line.agent === agent));
  const wanted = route.query.get("arm") ?? "strong";
  const arm = played.includes(wanted) ? wanted : (played.find((name) => name !== "none") ?? played[0]);
  const line = study.lines.find((each) => each.agent === agent && each.arm === arm)!;
  const models = study.agents.filter((name) => !isPolicy(name));
  const set = (changes: Record<string, string>) => replaceQuery(route, changes);
  return (
    <>
      <div class="title">
        <h1>Consult</h1>
        <p class="lead">
          {models.length ? count(models.length, "agent") : "No language model"} and {count(study.agents.length - models.length, "reference policy").replace(/policys$/, "policies")} on {count(study.cases, "case")} of {study.dataset}
          {study.groups ? ` (${count(study.groups, "group")})` : ""}. The agent is held fixed, the image encoder behind its tools is what changes.
        </p>
      </div>
      {study.blinding.length > 0 && !study.cautions.some((text) => text.startsWith("blinding: ")) && (
        <p class="fine">
          Blinding: a classifier that sees only the form of the tools’ answers distinguishes{" "}
          {study.blinding.map((check) => `${check.first} from ${check.second} with AUC ${decimals(check.auc[0], 2)} (${decimals(check.auc[1], 2)} to ${decimals(check.auc[2], 2)})`).join(", ")}.
        </p>
      )}
      {study.cautions.map((text) => (
        <Notice kind="warning">{text}</Notice>
      ))}
      <Verdicts study={study} models={models} />
      <section class="card toolbar consult-bar" aria-label="What is shown">
        {site.consult.length > 1 && <Select label="Study" value={study.name} options={site.consult.map((name) => ({ value: name, label: name }))} onChange={(name) => set({ study: name })} />}
        <Select label="Agent" value={agent} options={study.agents.map((name) => ({ value: name, label: short(name), group: isPolicy(name) ? "Reference policies" : "Agents" }))} onChange={(name) => set({ agent: name })} />
        <Select label="Arm" value={arm} options={played.map((name) => ({ value: name, label: name }))} onChange={(name) => set({ arm: name })} />
        <p class="fine">
          <b>{arm}</b>: the encoder’s tools {armWords(study, arm)}. {isPolicy(agent) && POLICIES[agent] && <><b>{short(agent)}</b>: {POLICIES[agent]}.</>}
        </p>
      </section>
      <AgainstTool study={study} agent={agent} arm={arm} />
      <div class="columns">
        <Reliance study={study} line={line} />
        <TrustPlane study={study} arm={arm} />
      </div>
      <div class="columns">
        <MisReliance study={study} agent={agent} arm={arm} />
        <Sequence study={study} agent={agent} />
      </div>
      <div class="columns">
        <Risk study={study} arm={arm} />
        <Contrasts study={study} agent={agent} />
      </div>
      <Failures study={number} place={study.lines.indexOf(line)} line={line} key={`${agent} ${arm}`} />
      <AllNumbers study={study} agent={agent} />
    </>
  );
}

function armWords(study: Study, arm: string): string {
  const words = study.arms.find((each) => each.name === arm)?.words ?? "";
  if (arm === "none") return words;
  const encoder = study.encoders.find((each) => each.role === arm);
  return `are ${encoder ? `${words} (${encoder.name}, probe ${percent(encoder.probe, 1)})` : words}`;
}

/** What a reader should take away: does the model add anything to what a regression reads from the same numbers? */
function Verdicts({ study, models }: { study: Study; models: string[] }) {
  const best = (agent: string) => study.lines.find((line) => line.agent === agent && line.arm === "strong");
  if (!models.length)
    return <Notice>No language model has answered yet: all rows are reference policies. Run a model with <code>histobench consult run STUDY --agent openai:MODEL</code>.</Notice>;
  return (
    <>
      {models.map((agent) => {
        const line = best(agent);
        const said = study.reader.filter((verdict) => verdict.agent === agent);
        const strong = said.find((verdict) => verdict.arm === "strong") ?? said[0];
        return (
          <section class={`card verdict ${strong?.beats ? "holds" : ""}`}>
            <h2>
              <b>{agent}</b> {line ? `is right in ${percent(line.values.final[0] ?? NaN, 1)} of cases with the strong encoder; the encoder alone is right in ${percent(line.values.tool[0] ?? NaN, 1)}.` : "has no answers in arm strong."}
            </h2>
            {strong && <p>{strong.text.replace(/-(?=\d)/g, "−")}</p>}
            {!strong && <p class="fine">Run <code>policy:reader</code> in the same arms to see whether the agent adds anything to the numbers that it is shown.</p>}
          </section>
        );
      })}
    </>
  );
}

function AgainstTool({ study, agent, arm }: { study: Study; agent: string; arm: string }) {
  const [by, setBy] = useState("arm");
  const rows = useMemo<DumbbellRow[]>(() => {
    const lines = study.lines.filter((line) => (by === "arm" ? line.agent === agent : line.arm === arm));
    return lines.map((line) => {
      const { final, tool, first, over_tool: gain } = line.values;
      return { name: by === "arm" ? line.arm : short(line.agent), first: first[0], tool: tool[0], final: final[0]!, low: final[1], high: final[2], gain, strong: by !== "arm" && !isPolicy(line.agent) };
    });
  }, [study, agent, arm, by]);
  return (
    <Chart
      title={by === "arm" ? `${short(agent)} against the tool alone, arm by arm` : `Agents against the tool alone in arm ${arm}`}
      name={`consult_${by === "arm" ? short(agent) : arm}`}
      depends={[rows]}
      paperWidth={720}
      draw={(width, palette) => dumbbell(rows, width, palette)}
      controls={<Segments label="Rows" value={by} options={[{ value: "arm", label: "By arm" }, { value: "agent", label: "By agent" }]} onChange={setBy} />}
      caption="Accuracy over all test regions (cases weighted by the inverse of their chance to be selected). Thin line: 95% interval of the final answer, over groups. Violet: the agent is above its tool; pink: below. The color is not a test: point at a row for the interval of the difference."
    />
  );
}

function Reliance({ study, line }: { study: Study; line: Line }) {
  const { right, wrong } = line.reliance;
  if (!right.length && !wrong.length)
    return null;
  return (
    <Chart
      title={`Reliance: ${short(line.agent)}, arm ${line.arm}`}
      name={`reliance_${short(line.agent)}_${line.arm}`}
      depends={[study, line]}
      draw={(width, palette) => reliance(right, wrong, width, palette)}
      caption="How often the final answer is the tool’s, by the confidence that the tool states (bins of 0.2; size: cases). Bars are 95% intervals. The farther apart the lines, the better the agent distinguishes right from wrong answers."
    />
  );
}

function TrustPlane({ study, arm }: { study: Study; arm: string }) {
  const points = useMemo<TrustPoint[]>(
    () =>
      study.lines
        .filter((line) => line.arm === arm && line.values.u_right[0] !== null && line.values.u_wrong[0] !== null)
        .map(({ agent, values: { u_right: r, u_wrong: w } }) => ({ name: short(agent), right: r[0]!, wrong: w[0]!, rightRange: [r[1], r[2]], wrongRange: [w[1], w[2]], strong: !isPolicy(agent) })),
    [study, arm],
  );
  if (!points.length) return null;
  return (
    <Chart
      title={`When the agent trusts the tool: arm ${arm}`}
      name={`trust_${arm}`}
      depends={[points]}
      draw={(width, palette) => trustPlane(points, width, palette)}
      caption="Upper left is best: the agent gives the tool’s answer when it is right and not when it is wrong, whether or not it asked the tool. On the dashed line it gives right and wrong answers of the tool equally often. Filled: agents; hollow: reference policies. Lines are 95% intervals."
    />
  );
}

function MisReliance({ study, agent, arm }: { study: Study; agent: string; arm: string }) {
  const [by, setBy] = useState("agent");
  const rows = useMemo<(IntervalRow | Heading)[]>(() => {
    const lines = study.lines.filter((line) => (by === "arm" ? line.agent === agent : line.arm === arm) && line.values.u_right[0] !== null);
    const of = (name: string) =>
      lines.flatMap((line): IntervalRow[] => {
        const [value, low, high] = line.values[name];
        return value === null ? [] : [{ name: by === "arm" ? line.arm : short(line.agent), value, low, high, strong: by === "arm" || !isPolicy(line.agent) }];
      });
    const [over, under] = [of("u_wrong"), of("u_right").map(({ value, low, high, ...rest }) => ({ ...rest, value: 1 - value, low: high == null ? null : 1 - high, high: low == null ? null : 1 - low }))];
    return [...(over.length ? [{ heading: "Over-reliance" }, ...over] : []), ...(under.length ? [{ heading: "Under-reliance" }, ...under] : [])];
  }, [study, agent, arm, by]);
  if (!rows.length) return null;
  return (
    <Chart
      title="Over- and under-reliance"
      name={`mis-reliance_${by === "arm" ? short(agent) : arm}`}
      depends={[rows]}
      draw={(width, palette) => intervalRows(rows, { label: "share of cases (less is better)", percent: true }, width, palette)}
      controls={<Segments label="Rows of over- and under-reliance" value={by} options={[{ value: "agent", label: "By agent" }, { value: "arm", label: "By arm" }]} onChange={setBy} />}
      caption={`Over-reliance: the tool’s answer where it is wrong. Under-reliance: another answer where the tool is right. ${by === "arm" ? `${short(agent)} in every arm. Bars are 95% intervals.` : `All agents in arm ${arm}. Bars are 95% intervals; filled: agents, hollow: reference policies.`}`}
    />
  );
}

const SEQUENCE_MEASURES = [
  { value: "discrimination", label: "distinguishes right from wrong" },
  { value: "u_right", label: "tool’s answer when right" },
  { value: "u_wrong", label: "tool’s answer when wrong" },
];

function Sequence({ study, agent }: { study: Study; agent: string }) {
  const [measure, setMeasure] = useState("discrimination");
  const agents = study.agents.filter((name) => study.sequences[name]);
  const rows = useMemo<(IntervalRow | Heading)[]>(
    () =>
      agents.flatMap((name) => [
        { heading: short(name) },
        ...study.sequences[name].parts
          .filter((part) => part.measure === measure)
          .flatMap((part): IntervalRow[] =>
            ([["with the change", part.changed], ["without", part.same]] as const).flatMap(([kind, value]): IntervalRow[] =>
              value && value[0] !== null ? [{ name: `${part.part}, ${kind}`, value: value[0], low: value[1], high: value[2], strong: name === agent }] : [],
            ),
          ),
      ]),
    [study, agent, measure],
  );
  if (!agents.length)
    return null;
  const own = study.sequences[agent] ?? study.sequences[agents[0]];
  const adapted = own.until.filter((cases) => cases !== null).length;
  const said = own.until.length
    ? ` ${short(study.sequences[agent] ? agent : agents[0])} halves the share of the tool’s wrong answers that it gives in ${adapted} of ${own.until.length} sequences after the change${own.median === null ? "" : ` (median: after ${own.median} cases)`}${own.falseAlarms === null ? "" : `, and in ${percent(own.falseAlarms)} of the sequences without a change`}.`
    : "";
  return (
    <Chart
      title="Before and after the encoder is replaced"
      name={`sequence_${measure}`}
      depends={[rows]}
      draw={(width, palette) => intervalRows(rows, { label: SEQUENCE_MEASURES.find((m) => m.value === measure)!.label, percent: measure !== "discrimination", zero: measure === "discrimination" }, width, palette)}
      controls={<Select label="Measure" value={measure} options={SEQUENCE_MEASURES} onChange={setMeasure} />}
      caption={`Sequences of ${own.length} cases; the agent passes notes from case to case. The encoder is replaced after case ${own.change} without notice. Shown: the last quarter before and the last quarter after that case, with and without the change. Bars are 95% intervals over sequences; filled: the agent chosen above.${said}`}
    />
  );
}

const MOST_CURVES = 7;

function Risk({ study, arm }: { study: Study; arm: string }) {
  const curves = useMemo<RiskCurve[]>(
    () =>
      study.lines
        .filter((line) => line.arm === arm && line.risk)
        .slice(0, MOST_CURVES)
        .map((line) => ({ name: `${short(line.agent)} (${decimals(line.plain.aurc)})`, points: line.risk!, answered: 1 - (line.values.deferred[0] ?? 0) - (line.values.unanswered[0] ?? 0) })),
    [study, arm],
  );
  if (!curves.length)
    return null;
  return (
    <Chart
      title={`Risk and coverage: arm ${arm}`}
      name={`risk-coverage_${arm}`}
      depends={[curves]}
      draw={(width, palette) => riskCoverage(curves, width, palette)}
      caption="Share of wrong answers if only the most confident answers were used. In brackets the area under the curve (less is better). Dashed: deferred and unanswered cases, which come last and are not right."
    />
  );
}

function Contrasts({ study, agent }: { study: Study; agent: string }) {
  const rows = study.contrasts.filter((contrast) => contrast.agent === agent);
  const useful = study.usefulness[agent];
  const slope = study.doseSlope[agent];
  if (!rows.length) return null;
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Registered contrasts: {short(agent)}</h2>
        <TableDownloads
          table={() => ({
            name: `contrasts_${study.dataset}`,
            caption: "Registered contrasts with 95% intervals; p by Holm over those of an agent that were registered before play.",
            header: ["agent", "contrast", "registered", "value", "low", "high", "p", "p (Holm)", "note"],
            rows: study.contrasts.map((c) => [c.agent, c.words, c.registered, ...c.value, c.p, c.adjusted, c.reason]),
          })}
        />
      </header>
      <div class="scroll">
        <table class="plain contrasts">
          <thead>
            <tr>
              <th scope="col">Contrast</th>
              <th scope="col" class="number">Value</th>
              <th scope="col">95% interval</th>
              <th scope="col" class="number">p (Holm)</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((contrast) => (
              <tr key={contrast.name}>
                <th scope="row">
                  {contrast.words}
                  <br />
                  <small>
                    {contrast.registered ? `registered ${contrast.registered.slice(0, 16).replace("T", " ")}` : "as in the protocol"}
                    {contrast.inAdvance ? "" : ", after play: exploratory"}
                    {contrast.groups ? `; ${contrast.groups} ${contrast.words.includes("sequence") ? "sequences" : "groups"}, as informative as ${count(Math.round(contrast.effective), "case")} of equal weight` : ""}
                  </small>
                </th>
                <td class="number">{signed(contrast.value[0])}</td>
                <td>
                  {contrast.value[1] === null ? contrast.reason : interval(contrast.value[1], contrast.value[2])}
                  {contrast.value[1] !== null && contrast.reason && <><br /><small>{contrast.reason}</small></>}
                </td>
                <td class="number">{pValue(contrast.adjusted)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="fine">
        A contrast is shown if its interval excludes 0; p is corrected for the contrasts that were registered before the agent played (Holm). Over-reliance: how often the agent gives the tool’s answer where it is wrong. Telling right from wrong: how often it gives the tool’s answer where that is right, minus over-reliance.
        {slope !== null && slope !== undefined && ` Slope of over-reliance over the share of wrong answers: ${signed(slope, 2)}.`}
        {useful?.probe !== null && useful?.probe !== undefined && ` Rank correlation of the agent’s accuracy with each of ${useful.encoders} encoders and their linear-probe accuracy: Kendall’s tau ${decimals(useful.probe, 2)}.`}
      </p>
    </section>
  );
}

const COLUMNS: { name: string; label: string; signed?: boolean; plain?: boolean; points?: boolean }[] = [
  { name: "first", label: "First" },
  { name: "tool", label: "Tool" },
  { name: "final", label: "Final" },
  { name: "over_tool", label: "Final − tool", signed: true },
  { name: "over_none", label: "Final − none", signed: true },
  { name: "u_right", label: "Follows, right" },
  { name: "u_wrong", label: "Follows, wrong" },
  { name: "discrimination", label: "Right minus wrong", signed: true },
  { name: "rair", label: "Corrected by tool" },
  { name: "rsr", label: "Resists tool" },
  { name: "deferred", label: "Deferred" },
  { name: "unanswered", label: "Unanswered" },
  { name: "ece", label: "Calibration error", plain: true },
  { name: "aurc", label: "Risk area", plain: true },
  { name: "calls_per_correct", label: "Calls / right", plain: true },
  { name: "tokens_per_correct", label: "Tokens / right", plain: true },
  { name: "dollars_per_correct", label: "$ / right", plain: true },
];
const WITH_INTERVAL = new Set(["final", "over_tool", "over_none", "u_right", "u_wrong", "discrimination"]);

function AllNumbers({ study, agent }: { study: Study; agent: string }) {
  const [which, setWhich] = useState("one");
  const lines = which === "one" ? study.lines.filter((line) => line.agent === agent) : study.lines;
  const columns = COLUMNS.filter((column) => study.lines.some((line) => (column.plain ? line.plain[column.name] : line.values[column.name]?.[0]) !== null && (column.plain ? line.plain[column.name] : line.values[column.name]?.[0]) !== undefined));
  const cell = (line: Line, { name, plain, signed: sign }: (typeof COLUMNS)[number]) => {
    if (plain) {
      const value = line.plain[name];
      return value === null || value === undefined ? "–" : value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
    }
    const value = line.values[name]?.[0];
    return sign ? signed(value) : decimals(value);
  };
  const names = [...new Set([...study.lines.flatMap((line) => Object.keys(line.values))])];
  const extra = [...new Set(study.lines.flatMap((line) => Object.keys(line.plain)))];
  return (
    <section class="card">
      <header class="figure-head">
        <h2>All numbers</h2>
        {study.agents.length > 1 && <Segments label="Rows of all numbers" value={which} options={[{ value: "one", label: short(agent) }, { value: "all", label: `All ${study.agents.length} agents` }]} onChange={setWhich} />}
        <TableDownloads
          table={() => ({
            name: `consult_${study.dataset}`,
            caption: "Measures of Consult with 95% intervals over groups.",
            header: ["agent", "arm", "cases", "effective", "effective, wrong tool", "repeats", ...names.flatMap((name) => [name, `${name} low`, `${name} high`]), ...extra],
            rows: study.lines.map((line) => [line.agent, line.arm, line.cases, line.effective, line.effectiveWrong, line.repeats, ...names.flatMap((name) => line.values[name] ?? [null, null, null]), ...extra.map((name) => line.plain[name] ?? null)]),
          })}
        />
      </header>
      <div class="scroll">
        <table class="plain consult-table">
          <thead>
            <tr>
              <th scope="col" class="sticky">Agent</th>
              <th scope="col">Arm</th>
              <th scope="col" class="number">Cases</th>
              <th scope="col" class="number" title="Number of cases of equal weight that are as informative; in brackets those with a wrong tool">Equal cases (wrong tool)</th>
              {columns.map((column) => (
                <th scope="col" class="number">{column.label}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {lines.map((line, k) => (
              <tr key={`${line.agent} ${line.arm}`} class={k > 0 && lines[k - 1].agent !== line.agent ? "parted" : undefined}>
                <th scope="row" class="sticky">{short(line.agent)}</th>
                <td>{line.arm}</td>
                <td class="number">{line.cases}</td>
                <td class="number">{line.effective.toFixed(0)} ({line.effectiveWrong.toFixed(0)})</td>
                {columns.map((column) => {
                  const [, low, high] = line.values[column.name] ?? [null, null, null];
                  const bounds = WITH_INTERVAL.has(column.name) && low !== null && high !== null;
                  return (
                    <td class="number">
                      {cell(line, column)}
                      {bounds && <small>{decimals(low, 2)} to {decimals(high, 2)}</small>}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="fine">
        First, tool, final: accuracy of the first answer, of the tool alone and of the final answer. Follows: gives the tool’s answer where it is right, and where it is wrong; right minus wrong is the difference. Corrected by tool (RAIR): right in the end where the first answer was wrong and the tool right. Resists tool (RSR): stays right where the tool was wrong. Deferred and unanswered
        cases are not right. Equal cases: the number of cases of equal weight that are as informative as these weighted ones. Risk area: mean share of wrong answers over all thresholds of confidence. Intervals are over patients or slides (in sequences: over sequences). CSV and LaTeX hold all measures with their intervals, the same numbers as <code>histobench consult table --json</code>.
      </p>
    </section>
  );
}
