// A run whose target is not a class: a number, survival, several labels, or ordered levels.
import { useMemo, useState } from "preact/hooks";
import { decodeProbabilities, unpack, unitOf, type Packed, type RunData, type Site } from "../data";
import { precisionRecall, roc, type Predictions } from "../curves";
import { count, decimals, interval, pValue, percent } from "../format";
import { Chart } from "../chart";
import { classCurves, type ClassCurve } from "../charts/class-curves";
import { scatter, survival, type Survival } from "../charts/targets";
import { Notice, Segments, TableDownloads } from "../parts";
import { MaskView, type MaskData } from "./mask-run";
import { Confusion, Metrics, Provenance, RunTitle } from "./run";

interface Label {
  name: string;
  positives: number;
  /** [value, low, high] */
  auroc: (number | null)[];
  auprc: (number | null)[];
}

/** Of each kind of target its own part. */
export interface TargetData extends MaskData {
  kind: "regression" | "survival" | "multilabel" | "ordinal" | "mask";
  columns: string[];
  rows: number;
  groups: number | null;
  truth: Packed;
  predicted: Packed;
  names: string[];
  curves: Survival[];
  ticks: number[];
  logRank: number | null;
  labels: Label[];
  levels: string[];
}

export function TargetRun({ site, run, data }: { site: Site; run: number; data: RunData }) {
  const target = data.target!;
  const noun = unitOf(site.boards[site.runs.board[run]]);
  const name = `${site.encoders[site.runs.encoder[run]].name}_${site.datasets[site.runs.dataset[run]].name}`;
  const about = `${count(target.rows, noun)}${target.groups && noun !== "patient" ? ` of ${count(target.groups, "group")}` : ""}, target: ${target.columns.join(", ")}`;
  const View = { regression: Regression, survival: SurvivalView, multilabel: Labels, ordinal: Levels, mask: MaskView }[target.kind];
  return (
    <>
      <RunTitle site={site} run={run} about={about} />
      {data.warnings.map((text) => (
        <Notice kind="warning">{text}</Notice>
      ))}
      <div class="columns">
        <Metrics site={site} name={name} data={data} units={{ number: target.groups ?? target.rows, noun: target.groups ? "group" : noun }} />
        <View data={data} target={target} name={name} noun={noun} />
      </div>
      <Provenance data={data} />
    </>
  );
}

interface ViewProps {
  data: RunData;
  target: TargetData;
  name: string;
  noun: string;
}

function Regression({ target, name, noun }: ViewProps) {
  const points = useMemo(() => {
    const [truth, said] = [unpack(target.truth), unpack(target.predicted)];
    return target.names.map((row, k) => ({ name: row, truth: truth[k], said: said[k] }));
  }, [target]);
  return (
    <Chart
      title="Predicted against true"
      name={`predicted_${name}`}
      depends={[points]}
      paperWidth={460}
      draw={(width, palette) => scatter(points, target.columns[0], width, palette)}
      caption={`On the dashed line the prediction is right.${points.length < target.rows ? ` Shown are ${count(points.length, noun)} of ${target.rows.toLocaleString("en")}, evenly over the true values.` : ""}`}
    />
  );
}

function SurvivalView({ target, name }: ViewProps) {
  if (!target.curves.length)
    return (
      <section class="card">
        <h2>Survival by predicted risk</h2>
        <Notice>All patients have the same predicted risk, so they cannot be divided.</Notice>
      </section>
    );
  return (
    <Chart
      title="Survival by predicted risk"
      name={`survival_${name}`}
      depends={[target]}
      draw={(width, palette) => survival(target.curves, target.columns[0], width, palette)}
      caption={
        <>
          Kaplan-Meier curves of the test patients above the median predicted risk and of the others, with pointwise 95% bands; log-rank test p {target.logRank !== null && target.logRank < 0.001 ? "" : "= "}
          {pValue(target.logRank)}. The C-indices use all risks, not only which half a patient is in.
          <span class="scroll">
            <table class="plain">
              <thead>
                <tr>
                  <th scope="col">Patients at risk</th>
                  {target.ticks.map((tick) => (
                    <th scope="col" class="number">{tick.toLocaleString("en", { maximumSignificantDigits: 3 })}</th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {target.curves.map((curve) => (
                  <tr key={curve.name}>
                    <th scope="row">
                      {curve.name} <small>{count(curve.events, "event")}</small>
                    </th>
                    {curve.atRisk.map((number) => (
                      <td class="number">{number}</td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </span>
        </>
      }
    />
  );
}

function Labels({ target, name, noun }: ViewProps) {
  const [kind, setKind] = useState("roc");
  const curves = useMemo(() => {
    const [truth, said] = [unpack(target.truth), decodeProbabilities(target.predicted)];
    const k = target.labels.length;
    return target.labels.flatMap((label, place): ClassCurve[] => {
      const p: Predictions = { n: target.rows, c: 1, labels: Array.from({ length: target.rows }, (_, i) => (truth[i * k + place] ? 0 : 1)), predicted: [], probabilities: Float64Array.from({ length: target.rows }, (_, i) => said[i * k + place]) };
      const points = kind === "roc" ? roc(p, 0) : precisionRecall(p, 0);
      return points ? [{ name: label.name, points, area: (kind === "roc" ? label.auroc : label.auprc)[0], chance: kind === "roc" ? null : label.positives / target.rows }] : [];
    });
  }, [target, kind]);
  const words = kind === "roc" ? { x: "false positive rate", y: "true positive rate", area: "AUROC" } : { x: "recall", y: "precision", area: "AP" };
  return (
    <div class="stack">
      <section class="card">
        <header class="figure-head">
          <h2>Labels</h2>
          <TableDownloads table={() => ({ name: `labels_${name}`, caption: "Each label by itself, with 95% intervals.", header: ["label", "positive", "AUROC", "low", "high", "average precision", "low", "high"], rows: target.labels.map((label) => [label.name, label.positives, ...label.auroc, ...label.auprc]) })} />
        </header>
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th scope="col">Label</th>
                <th scope="col" class="number">Positive</th>
                <th scope="col" class="number">AUROC</th>
                <th scope="col">95% interval</th>
                <th scope="col" class="number">Average precision</th>
                <th scope="col">95% interval</th>
              </tr>
            </thead>
            <tbody>
              {target.labels.map(({ name: label, positives, auroc, auprc }) => (
                <tr key={label}>
                  <th scope="row">{label}</th>
                  <td class="number">
                    {positives} <small>{percent(positives / target.rows)}</small>
                  </td>
                  {[auroc, auprc].map(([value, low, high]) => (
                    <>
                      <td class="number">
                        <b>{decimals(value)}</b>
                      </td>
                      <td>{interval(low, high)}</td>
                    </>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        <p class="fine">Average precision of chance is the share of positive {noun}s.</p>
      </section>
      {curves.length > 0 && (
        <Chart
          title={kind === "roc" ? "ROC of each label" : "Precision and recall of each label"}
          name={`${kind}_${name}`}
          level={3}
          depends={[curves]}
          draw={(width, palette) => classCurves(curves, words, width, palette)}
          controls={<Segments label="Curve" value={kind} options={[{ value: "roc", label: "ROC" }, { value: "pr", label: "PR" }]} onChange={setKind} />}
          caption="The dashed line is chance."
        />
      )}
    </div>
  );
}

function Levels({ target, name, noun }: ViewProps) {
  const p = useMemo<Predictions>(() => ({ n: target.rows, c: target.levels.length, labels: unpack(target.truth), predicted: unpack(target.predicted), probabilities: new Float64Array(0) }), [target]);
  return <Confusion classes={target.levels} predictions={p} noun={noun} name={name} cell={null} />;
}
