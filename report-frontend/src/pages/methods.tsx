// Where every number comes from, what the intervals mean, and how to cite.
import { useState } from "preact/hooks";
import { boardName, runName, type Site } from "../data";
import { count, day } from "../format";
import { CopyBox, Loading, Notice, TableDownloads, termsLabel, useData } from "../parts";
import { runHref } from "../route";

interface Methods {
  provenance: Record<"preset" | "seed" | "fingerprint" | "version" | "date" | "command", (string | number)[]>;
  bibtex: string;
  paragraph: string;
  how: string[];
  tests: string[];
  software: Record<string, string[]>;
}

const SHOWN = 50;

export function MethodsPage({ site }: { site: Site }) {
  const { value: methods, error } = useData<Methods>("methods");
  if (!methods) return <Loading error={error} />;
  return (
    <>
      <div class="title">
        <h1>Methods</h1>
        <p class="lead">Where every number comes from, what the intervals mean, and whom to cite.</p>
      </div>
      <div class="columns">
      <section class="card prose">
        <h2>How to read the numbers</h2>
        {site.boards.length > 0 && <EncoderMethods site={site} methods={methods} />}
        {site.agents.length > 0 && (
          <>
            <p>
              <strong>Agents.</strong> An agent may act a limited number of times: run code, or propose an answer. Success is the share of tasks solved in that many turns. Its 95% interval is over tasks: exact (Clopper and
              Pearson) where every task was played once, otherwise Student’s t on Wilson’s scale, where all plays of a task are one unit. It covers other tasks of the same kind, not other wordings of the prompt.
            </p>
            <p>
              <strong>Gain from feedback.</strong> Success with an expert’s feedback minus success without, on the tasks that both runs have. Feedback helps where the interval is above zero; there is no correction for the number of
              rows.
            </p>
          </>
        )}
        {Object.keys(methods.software).length > 0 && (
          <p>
            <strong>Software of the runs.</strong> {Object.entries(methods.software).map(([name, versions]) => `${name} ${versions.join(" or ")}`).join(", ")}.
          </p>
        )}
      </section>
      <section class="card">
        {methods.paragraph && <CopyBox label="Methods paragraph" text={methods.paragraph} prose />}
        <CopyBox label="BibTeX" text={methods.bibtex} />
      </section>
      </div>
      {site.encoders.length > 0 && <Encoders site={site} />}
      {site.encoders.length > 0 && <Runs site={site} methods={methods} />}
      {(site.unreadable.length > 0 || Object.keys(site.failures).length > 0) && (
        <section class="card">
          <h2>Left out</h2>
          <Notice kind="warning">
            <ul>
              {[...site.unreadable, ...Object.values(site.failures)].map((text) => (
                <li>{text}</li>
              ))}
            </ul>
          </Notice>
        </section>
      )}
    </>
  );
}

function EncoderMethods({ site, methods }: { site: Site; methods: Methods }) {
  return (
    <>
      <p>
        <strong>95% interval.</strong> A test set is a sample: other images of the same kind would give a slightly different number. In about 95 of 100 test sets the interval contains the value over all such images. It is computed by leaving
        out one patient or slide at a time where they are known (images of one patient are similar), and one image at a time otherwise. It does not cover a different training set, scanner or seed. Calibration errors, test sets
        with too few patients, and losses over patients with very few mistakes have no interval, because none would reach 95% coverage.
      </p>
      <p>
        <strong>Means over episodes or training runs.</strong> They depend on the labeled examples and on the test images: intervals and comparisons account for both. Where only “episodes” is named (results of an older version), the interval covers the labeled examples for these test images only; it is narrower than an interval over patients, so do not compare the two.
      </p>
      <p>
        <strong>May be the best.</strong> Encoders are compared on the same images, so images that are hard for all of them do not blur the comparison. A filled dot marks an encoder that may be the best: the test does not show it to be worse
        than the first of the column. The rule is the same on every page and in <code>histobench compare</code>: two encoders differ if the interval of their difference excludes 0. These intervals hold for all pairs of encoders in the
        table at once, so the chance of any false claim in a table is at most about {100 * site.alpha}%. “No difference shown” does not mean “equal”: the test set may be too small. Intervals of two encoders may overlap although they differ; read the
        paired difference on the <em>Compare</em> page. The correction covers one table: several tasks, metrics and datasets give more chances to be wrong, and are not corrected for.
      </p>
      <p>
        <strong>True rank and the set of the best.</strong> “True rank 2 to 5” of eight encoders: one is shown to be better, three are shown to be worse, and the test set shows no difference from the rest. These ranks hold for all
        encoders of a column at once, with {100 * (1 - site.alpha)}% confidence. The set of encoders that may be the best contains the truly best one with the same confidence.
      </p>
      <p>
        <strong>Selection-corrected value.</strong> The largest of several measured values is biased upward, and more so when many encoders are close. The selection-corrected estimate subtracts the average bias
        (slightly too much for an encoder that is clearly ahead); its interval accounts for the selection.
      </p>
      {site.datasets.length > 1 && <p>
        <strong>Mean rank and critical difference.</strong> Each dataset ranks the encoders; the mean of these ranks is compared with Nemenyi’s critical difference after Friedman’s test. Few datasets rarely show a
        difference.
      </p>}
      {methods.how.length > 0 && (
        <p>
          <strong>Intervals here.</strong> {methods.how.join("; ")}. Tests used: {methods.tests.join(", ") || "none"}.
        </p>
      )}
    </>
  );
}

function Encoders({ site }: { site: Site }) {
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Encoders, licenses and citations</h2>
        <TableDownloads
          table={() => ({
            name: "encoders",
            caption: "Encoders with licenses and references.",
            header: ["encoder", "title", "license", "parameters", "GFLOPs", "reference"],
            rows: site.encoders.map((e) => [e.name, e.title, e.licence, e.params ?? null, e.gflops ?? null, e.reference ?? null]),
          })}
        />
      </header>
      <div class="scroll">
        <table class="plain long">
          <thead>
            <tr>
              <th scope="col">Encoder</th>
              <th scope="col">License</th>
              <th scope="col" class="number">Parameters</th>
              <th scope="col" class="number">GFLOPs</th>
              <th scope="col">Reference</th>
            </tr>
          </thead>
          <tbody>
            {site.encoders.map((encoder) => (
              <tr key={encoder.name}>
                <th scope="row">
                  {encoder.page?.startsWith("https://") ? <a href={encoder.page}>{encoder.name}</a> : encoder.name}
                  {encoder.title !== encoder.name && <small> {encoder.title}</small>}
                </th>
                <td>
                  {encoder.licence || "–"} <small class={`terms ${encoder.terms}`}>{termsLabel(encoder.terms)}</small>
                </td>
                <td class="number">{encoder.params ? `${(encoder.params / 1e6).toFixed(1)} M` : "–"}</td>
                <td class="number">{encoder.gflops ?? "–"}</td>
                <td>{encoder.reference ?? "not in the zoo"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Runs({ site, methods }: { site: Site; methods: Methods }) {
  const [search, setSearch] = useState("");
  const [pages, setPages] = useState(1);
  const all = site.runs.encoder.map((_, run) => run);
  const text = (run: number) => `${runName(site, run)} ${site.datasets[site.runs.dataset[run]].name} ${boardName(site.boards[site.runs.board[run]])} ${methods.provenance.fingerprint[run]}`.toLowerCase();
  const found = search ? all.filter((run) => text(run).includes(search.toLowerCase())) : all;
  const shown = found.slice(0, pages * SHOWN);
  const cells = (run: number) => {
    const p = methods.provenance;
    const board = site.boards[site.runs.board[run]];
    return [runName(site, run), site.datasets[site.runs.dataset[run]].name, boardName(board), String(p.preset[run]), String(p.seed[run]), String(p.fingerprint[run]), String(p.version[run]), day(String(p.date[run]))];
  };
  const command = (run: number) => String(methods.provenance.command[run]).replace(/ \\\n\s+/g, " ");
  const header = ["encoder", "dataset", "task", "preset", "seed", "fingerprint", "version", "date"];
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Every run</h2>
        <label class="control">
          <span>Find</span>
          <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} placeholder="encoder, dataset, fingerprint" />
        </label>
        <TableDownloads table={() => ({ name: "runs", caption: "Every run, with the command that makes it again.", header: [...header, "command"], rows: found.map((run) => [...cells(run), command(run)]) })} />
      </header>
      <div class="scroll">
        <table class="plain long">
          <thead>
            <tr>
              {header.map((label) => (
                <th scope="col">{label}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((run) => {
              const [name, ...rest] = cells(run);
              return (
                <tr key={run}>
                  <th scope="row">
                    <a href={runHref(site, run)}>{name}</a>
                  </th>
                  {rest.map((cell, k) => (
                    <td class={k === 4 ? "code" : undefined}>{cell}</td>
                  ))}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <p class="fine">The fingerprint names the features that went in: weights, preprocessing and images. The command that makes a run again is on its page, and in the CSV.</p>
      {shown.length < found.length && (
        <p>
          <button type="button" onClick={() => setPages(pages + 1)}>
            Show more ({count(found.length - shown.length, "run")} left)
          </button>
        </p>
      )}
    </section>
  );
}
