// The shortlist that `histobench choose` stored, with a paragraph to paste.
import type { Site } from "../data";
import { compact, decimals, MISSING } from "../format";
import { CopyBox, Loading, Notice, TableDownloads, useData } from "../parts";
import { href } from "../route";

interface Candidate {
  name: string;
  license: string;
  params: number | null;
  robustness: number | null;
  why_not: string[];
  values: Record<string, (number | null)[]>;
  tied_best: string[];
}

interface Choice {
  conditions: string;
  task: string;
  metricLabel: string;
  datasets: string[];
  candidates: Candidate[];
  excluded: Candidate[];
  best: string[];
  paragraph: string;
  tested?: string[];
}

export function ChoosePage({ site }: { site: Site }) {
  const { value: choice, error } = useData<Choice>(site.choice ? "choice" : null);
  if (!site.choice) return <Notice kind="problem">This report has no shortlist; run <code>histobench choose</code> first. <a href={href("")}>Go to the start</a></Notice>;
  if (!choice) return <Loading error={error} />;
  const metric = choice.metricLabel;
  // A file of an earlier version does not say what was tested.
  const tested = choice.tested ?? choice.datasets;
  const best = (each: Candidate) => `${each.tied_best.length} of ${tested.length}`;
  return (
    <>
      <div class="title">
        <h1>Which encoder?</h1>
        <p class="lead">
          By {choice.task}, {metric}. Conditions: {choice.conditions}.
        </p>
      </div>
      <section class="card">
        <CopyBox label="Paragraph for a proposal" text={choice.paragraph} prose />
      </section>
      {choice.candidates.length > 0 && (
        <section class="card">
          <header class="figure-head">
            <h2>Shortlist</h2>
            <TableDownloads table={() => ({ name: "shortlist", caption: `Encoders that meet the conditions (${choice.conditions}), by ${choice.task}, ${metric}.`, header: ["encoder", ...(tested.length ? ["may be best on"] : []), ...choice.datasets, "parameters", "robustness", "license"], rows: choice.candidates.map((each) => [each.name, ...(tested.length ? [best(each)] : []), ...choice.datasets.map((name) => each.values[name]?.[0] ?? null), each.params, each.robustness, each.license]) })} />
          </header>
          <div class="scroll">
            <table class="plain">
              <thead>
                <tr>
                  <th scope="col">Encoder</th>
                  {tested.length > 0 && <th scope="col">May be best on</th>}
                  {choice.datasets.map((name) => (
                    <th scope="col" class="number" key={name}>
                      {name}
                    </th>
                  ))}
                  <th scope="col" class="number">Parameters</th>
                  <th scope="col" class="number">Robustness</th>
                  <th scope="col">License</th>
                </tr>
              </thead>
              <tbody>
                {choice.candidates.map((each) => (
                  <tr key={each.name}>
                    <th scope="row">{each.name}</th>
                    {tested.length > 0 && <td>{best(each)}</td>}
                    {choice.datasets.map((name) => (
                      <td class="number" key={name}>
                        {tested.includes(name) && each.tied_best.includes(name) ? <b>{decimals(each.values[name]?.[0])}</b> : decimals(each.values[name]?.[0])}
                      </td>
                    ))}
                    <td class="number">{each.params === null ? MISSING : compact(each.params)}</td>
                    <td class="number">{decimals(each.robustness)}</td>
                    <td>{each.license}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="fine">{tested.length > 0 && "Bold: no other encoder of the list is shown to be better on that dataset (95% confidence, paired and corrected for all pairs). "}{tested.length === 0 && "Differences were not tested: the order is that of the measured values. "}Parameters are those of the image tower. Licenses are those in `histobench models`; read the text before you rely on it.</p>
        </section>
      )}
      {choice.excluded.length > 0 && (
        <section class="card">
          <h2>Excluded</h2>
          <ul>
            {choice.excluded.map((each) => (
              <li key={each.name}>
                {each.name}: {each.why_not.join(", ")}
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}
