// How alike the encoders are on the same test images.
import type { Site } from "../data";
import { Chart } from "../chart";
import { heatMap, type Alike } from "../charts/heat-map";
import { decimals, interval } from "../format";
import { Loading, Notice, Segments, Select, TableDownloads, useData } from "../parts";
import { href, replaceQuery, type Route } from "../route";

const MEANING: Record<string, string> = {
  cka: "Debiased linear CKA: 1 where the features are the same up to rotation and scale, 0 where they have nothing in common.",
  neighbors: "The mean share of an image’s nearest neighbors that two encoders have in common.",
  errors: "Cohen’s kappa of being wrong: 1 where both misclassify the same images, 0 as by chance.",
};

export function SimilarityPage({ site, route }: { site: Site; route: Route }) {
  const { value: tables, error } = useData<Alike[]>(site.similarity ? "similarity" : null);
  if (!site.similarity) return <Notice kind="problem">This report has no similarity of encoders. <a href={href("")}>Go to the start</a></Notice>;
  if (!tables) return <Loading error={error} />;
  const datasets = [...new Set(tables.map((table) => table.dataset))];
  const dataset = datasets.includes(route.query.get("dataset") ?? "") ? route.query.get("dataset")! : datasets[0];
  const measures = tables.filter((table) => table.dataset === dataset);
  const table = measures.find((each) => each.measure === route.query.get("by")) ?? measures[0];
  const pairs = table.encoders
    .flatMap((first, y) => table.encoders.slice(y + 1).map((second, k) => ({ first, second, cell: table.cells[y][y + 1 + k] })))
    .sort((a, b) => (b.cell[0] ?? -1) - (a.cell[0] ?? -1));
  return (
    <>
      <div class="title">
        <h1>Similarity</h1>
        <p class="lead">Which encoders see the same in the same images? Two that differ may be worth combining.</p>
      </div>
      {(datasets.length > 1 || measures.length > 1) && (
        <section class="card toolbar" aria-label="What is shown">
          {datasets.length > 1 && <Select label="Dataset" value={dataset} options={datasets.map((name) => ({ value: name, label: name }))} onChange={(name) => replaceQuery(route, { dataset: name })} />}
          {measures.length > 1 && <Segments label="Measure" value={table.measure} options={measures.map((each) => ({ value: each.measure, label: each.label }))} onChange={(by) => replaceQuery(route, { by })} />}
        </section>
      )}
      <Chart
        title={`${table.label} on ${dataset}`}
        name={`similarity_${table.measure}_${dataset}`}
        draw={(width, palette) => heatMap(table, width, palette)}
        depends={[table]}
        caption={<>{MEANING[table.measure]} Encoders are ordered by average linkage of 1 − value; the tree shows what joins first.</>}
      />
      <section class="card">
        <header class="figure-head">
          <h2>Pairs</h2>
          <TableDownloads table={() => ({ name: `similarity_${table.measure}_${dataset}`, caption: `${table.label}, with 95% intervals over groups of images.`, header: ["encoder", "other", "value", "low", "high"], rows: pairs.map(({ first, second, cell }) => [first, second, cell[0], cell[1], cell[2]]) })} />
        </header>
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th scope="col">Encoders</th>
                <th scope="col" class="number">{table.label}</th>
                <th scope="col">95% interval</th>
              </tr>
            </thead>
            <tbody>
              {pairs.map(({ first, second, cell }) => (
                <tr key={`${first} ${second}`}>
                  <th scope="row">
                    {first} and {second}
                  </th>
                  <td class="number">
                    <b>{decimals(cell[0])}</b>
                  </td>
                  <td>{interval(cell[1], cell[2])}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
    </>
  );
}
