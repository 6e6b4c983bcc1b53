// Robustness of all encoders on one dataset: each measure with its interval, and robustness against accuracy.
import { useMemo, useState } from "preact/hooks";
import * as Plot from "@observablehq/plot";
import { count } from "../format";
import { base, Chart } from "../chart";
import { intervalRows, type IntervalRow } from "../charts/intervals";
import { Notice, Select } from "../parts";
import type { Palette } from "../theme";

type Value = [number | null, number | null, number | null];

interface Measure {
  name: string;
  label: string;
  lower: boolean;
  values: Value[];
}

export interface RobustnessData {
  column: string;
  encoders: string[];
  images: number;
  groups: number;
  sites: Record<string, number>;
  confounding: number | null;
  caveats: string[];
  measures: Measure[];
}

export function Robustness({ tables, name }: { tables: RobustnessData[]; name: string }) {
  const [place, setPlace] = useState(0);
  const table = tables[place];
  const [chosen, setMeasure] = useState(table.measures[0]?.name ?? "");
  const measure = table.measures.find((m) => m.name === chosen) ?? table.measures[0];
  const rows = useMemo<IntervalRow[]>(
    () =>
      (measure?.values ?? [])
        .flatMap(([value, low, high], k) => (value === null ? [] : [{ name: table.encoders[k], value, low, high, strong: true }]))
        .sort((a, b) => (measure.lower ? a.value - b.value : b.value - a.value)),
    [table, measure],
  );
  if (!measure) return null;
  const points = against(table);
  return (
    <>
      {table.caveats.length > 0 && <Notice kind="warning">Robustness by {table.column}: {table.caveats.join("; ")}.</Notice>}
      <Chart
        title="Robustness: the tissue or the site?"
        name={`robustness_${name}_${table.column}_${measure.name}`}
        depends={[rows]}
        draw={(width, palette) => intervalRows(rows, { label: `${measure.label}${measure.lower ? " (lower is better)" : ""}` }, width, palette)}
        controls={
          <>
            <Select label="Site" value={String(place)} options={tables.map((t, k) => ({ value: String(k), label: t.column }))} onChange={(k) => setPlace(Number(k))} />
            <Select label="Measure" value={measure.name} options={table.measures.map((m) => ({ value: m.name, label: m.label }))} onChange={setMeasure} />
          </>
        }
        caption={`${count(table.images, "image")} of ${count(table.groups, "group")} from ${count(Object.keys(table.sites).length, "site")}, all splits together. Bars are 95% intervals over groups.${table.confounding === null ? "" : ` Label and ${table.column} go together with Cramer's V ${table.confounding.toFixed(2)}.`}`}
      />
      {points.length > 1 && (
        <Chart
          title="Accuracy against robustness"
          name={`accuracy-robustness_${name}_${table.column}`}
          depends={[points]}
          draw={(width, palette) => scatter(points, width, palette)}
          caption={`Right: neighbours share the tissue and not the ${table.column}. Up: a linear probe is right at a ${table.column} it was not trained on.`}
        />
      )}
    </>
  );
}

interface Point {
  name: string;
  x: number;
  y: number;
}

function against(table: RobustnessData): Point[] {
  const of = (name: string) => table.measures.find((m) => m.name === name)?.values ?? [];
  const [index, accuracy] = [of("robustness_index"), of("new_site_linear_probe_mean")];
  return table.encoders.flatMap((name, k) => {
    const [x, y] = [index[k]?.[0], accuracy[k]?.[0]];
    return x === null || x === undefined || y === null || y === undefined ? [] : [{ name, x, y }];
  });
}

function scatter(points: Point[], width: number, palette: Palette): SVGSVGElement {
  return Plot.plot({
    ...base(width, palette, points.map((p) => `${p.name}: ${p.x.toFixed(3)}, ${p.y.toFixed(3)}`).join("; ")),
    height: 320,
    marginLeft: 56,
    marginRight: 90,
    x: { label: "Robustness index", nice: true, grid: true },
    y: { label: "Balanced accuracy at a new site", nice: true, grid: true },
    marks: [
      Plot.dot(points, { x: "x", y: "y", r: 5, fill: palette.accent }),
      Plot.text(points, { x: "x", y: "y", text: "name", dx: 9, textAnchor: "start" }),
    ],
  }) as SVGSVGElement;
}
