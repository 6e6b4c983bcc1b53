// Where every number comes from, what the intervals mean, and how to cite.
import { useState } from "preact/hooks";
import { boardName, runName, type Site } from "../data";
import { count, day } from "../format";
import { CopyBox, Loading, Notice, TableDownloads, termsLabel, useData } from "../parts";
import { runHref } from "../route";

interface Methods {
  provenance: Record<"preset" | "seed" | "fingerprint" | "version" | "date" | "train_features" | "test_features", (string | number)[]>;
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
              <strong>Agents.</strong> An agent may act a limited number of times: run code, or propose an answer. Success is the share of tasks solved in that many turns. Its 95% interval draws the tasks again; several
              plays of one task stay together. It is about other tasks of the same kind, not about other wordings of the prompt.
            </p>
            <p>
              <strong>What feedback is worth.</strong> Success with an expert’s feedback minus success without, on the tasks that both runs have. An interval that does not reach zero speaks for the feedback; several rows are not
              corrected for each other.
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
        <strong>95% interval.</strong> A test set is a sample: other images of the same kind would give a somewhat different number. The interval is made so that it holds the number of all such images in about 95 of 100
        test sets. How far numbers vary is seen by leaving out one patient or slide at a time where they are known (images of one patient are alike), and one image at a time otherwise. It does not cover another training
        set, another scanner or another seed. A calibration error has none, and neither has a test set of too few patients, nor a loss over patients with hardly a mistake: no interval of theirs would keep its promise.
      </p>
      <p>
        <strong>Means over episodes or training runs.</strong> They would be others with other labelled examples, and with other test images: both count in the interval and in the comparison. Where it says “episodes” alone (results of an older version), the interval is about the labelled examples for these test images: it is narrower than one over patients, and not to be compared with it.
      </p>
      <p>
        <strong>Ties.</strong> Encoders are compared on the same images, so what is hard for all of them does not count. A value is marked as a tie when its difference to the best of the column could be chance. One
        rule decides, on every page and in <code>histobench compare</code>: two encoders differ where the interval of their difference excludes 0. These intervals hold for all pairs of encoders in the table at once, so that the
        chance of any false claim in a table is about {100 * site.alpha}% at most. “Tie” does not mean “equal”: the test set may be too small to tell. Two
        intervals that overlap do not mean a tie either; the paired difference on the <em>Compare</em> page is what counts. All of this is within one table: over several tasks, metrics and datasets there are more
        chances to be wrong, and no correction for them is made.
      </p>
      <p>
        <strong>True rank, and who may be the best.</strong> “True rank 2 to 5” of eight encoders: one is shown to be better, three are shown to be worse, and the test set cannot tell the rest apart from it. These ranks hold for all
        encoders of a column at once, with {100 * (1 - site.alpha)}% confidence. The set of encoders that may be the best holds the truly best one with the same confidence.
      </p>
      <p>
        <strong>What the winner is worth.</strong> Who comes first among many was usually also lucky, so its measured value is too high on average, and the more so the more encoders are close. The corrected value takes off
        what winners of such a contest have too much on average (from one that is truly ahead of the others, rather too much); its interval allows for having been picked.
      </p>
      <p>
        <strong>Mean rank and critical difference.</strong> Each dataset ranks the encoders; the mean of these ranks is compared with Nemenyi’s critical difference after Friedman’s test. Few datasets rarely show a
        difference.
      </p>
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
        <h2>Encoders, licences and citations</h2>
        <TableDownloads
          table={() => ({
            name: "encoders",
            caption: "Encoders with licences and references.",
            header: ["encoder", "title", "licence", "parameters", "GFLOPs", "reference"],
            rows: site.encoders.map((e) => [e.name, e.title, e.licence, e.params ?? null, e.gflops ?? null, e.reference ?? null]),
          })}
        />
      </header>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">Encoder</th>
              <th scope="col">Licence</th>
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
  const command = (run: number) => {
    const p = methods.provenance;
    return commandOf(site, run, { train: String(p.train_features[run]), test: String(p.test_features[run]), preset: String(p.preset[run]), seed: Number(p.seed[run]) }).replace(/ \\\n\s+/g, " ");
  };
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
        <table class="plain">
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

/** The command that makes a run again; file names are those of the feature files. */
export function commandOf(site: Site, run: number, files: { train: string; test: string; preset: string; seed: number }): string {
  const board = site.boards[site.runs.board[run]];
  const quote = (text: string) => (/^[\w./@:+-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);
  const flags = [`--TASK ${quote(board.task)}`, `--train_feature_file ${quote(files.train || "TRAIN.pt")}`, `--test_feature_file ${quote(files.test || "TEST.pt")}`];
  const few = board.setting.match(/^(\d+)way_(\d+)shot$/);
  if (few) flags.push(`--n_way ${few[1]} --n_shot ${few[2]} --use_all_way False`);
  flags.push(`--preset ${quote(files.preset)}`, `--seed ${files.seed}`);
  return `histobench evaluate ${flags.join(" \\\n    ")}`;
}
