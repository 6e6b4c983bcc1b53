// What the data files hold, and how they are loaded: one script element each, so that file:// works.

import type { TargetData } from "./pages/target-run";

export interface Encoder {
  name: string;
  title: string;
  licence: string;
  terms: "open" | "non-commercial" | "restricted" | "unknown";
  gated?: boolean;
  page?: string;
  dim?: number;
  size?: number;
  params?: number | null;
  gflops?: number | null;
  speed?: number | null;
  /** Robustness index [value, low, high], that of the robustness page. */
  robustness?: (number | null)[] | null;
  citation?: string;
  reference?: string;
}

export interface DatasetFacts {
  name: string;
  images: number;
  groups: number | null;
  classes: number;
  /** Kinds of targets that are not classes. */
  targets: string[];
  source?: boolean;
}

export interface Metric {
  name: string;
  /** On leaderboards, and on the page of a run. */
  label: string;
  short: string;
  lower: boolean;
  tested: boolean;
  /** Whether leaderboards offer it. */
  offered: boolean;
}

export interface BoardFacts {
  task: string;
  setting: string;
  preset: string;
  /** Names of its metrics: those of classes, or of another target. */
  metrics: string[];
}

export interface Site {
  title: string;
  built: string;
  version: string;
  alpha: number;
  /** What images per second were measured on; empty where they were not. */
  speedDevice: string;
  live: boolean;
  encoders: Encoder[];
  datasets: DatasetFacts[];
  metrics: Metric[];
  boards: BoardFacts[];
  runs: { encoder: number[]; dataset: number[]; board: number[]; name: string[] };
  failures: Record<string, string>;
  unreadable: string[];
  /** Names of the agent runs. */
  agents: string[];
  /** Whether there is a robustness page. */
  robustness: boolean;
  /** What the robustness index of the encoders was measured on; null: there are several sets, so there is none. */
  robustnessIndex?: { dataset: string; column: string } | null;
  /** Names of the Consult studies. */
  consult: string[];
  /** Whether there is a page on how alike encoders are, and one with a shortlist. */
  similarity: boolean;
  choice: boolean;
  /** Whether there is a page on frozen and fine-tuned networks. */
  shift: boolean;
  /** Runs with the tiles that got the most attention. */
  tiles: number[];
  /** Image sets with thumbnails. */
  thumbs: string[];
  /** For each run the key of its map of embeddings, or an empty text. */
  maps: string[];
}

export interface Packed {
  type: "uint8" | "uint16" | "int32" | "float32";
  shape: number[];
  data: string;
}

export interface Ranking {
  rows: number[];
  ranks: number[];
  criticalDifference: number;
  groups: number[][];
  friedmanP: number;
  numDatasets: number;
  leftOut: string[];
  leftOutColumns: number[];
}

/** The best measured value of a column, corrected for having been picked. */
export interface Winner {
  row: number;
  value: number;
  low: number | null;
  high: number | null;
}

export interface BoardMetric {
  /** Which encoders may be the best, and on what evidence; or what is missing. */
  answer: string;
  /** Commands that give what the answer lacks, for the folder that holds the results folder. */
  commands: string[];
  /** The splits that the answer is over, where it is not over the test set of the table. */
  over?: string;
  value: (number | null)[][];
  low: (number | null)[][];
  high: (number | null)[][];
  standing: number[][];
  /** Where each encoder may truly stand, for all at once; null where it is not known. */
  ranks: ([number, number] | null)[][];
  mayBeBest: number[][];
  winners: (Winner | null)[];
  tests: [string, string][];
  ranking: Ranking | null;
}

export interface Board {
  rows: string[];
  datasets: number[];
  runs: number[][];
  metrics: Record<string, BoardMetric>;
  how: string[];
  numImages: number[];
  numGroups: (number | null)[];
  problems: string[];
}

export interface RunData {
  metrics: Record<string, number | null>;
  undefined: Record<string, string>;
  /** What the evaluation warned of, such as patients in both train and test. */
  warnings: string[];
  bounds: Record<string, [number | null, number | null]>;
  /** Why a metric has no interval, where that is known. */
  noBounds: Record<string, string>;
  boundsFrom: string;
  perClass: Record<string, Record<string, number | null>>;
  confusion: number[][] | null;
  classes: string[];
  images: string;
  predicted: Packed;
  probabilities: Packed;
  episodes: Packed | null;
  averaged: boolean;
  provenance: Provenance;
  info: Record<string, unknown>;
  /** Only where the target is not a class; there is then nothing of classes and images. */
  target?: TargetData;
}

export interface Provenance {
  preset: string;
  seed: number;
  fingerprint: string;
  description: string;
  version: string;
  date: string;
  n: number | null;
  train_features: string;
  val_features: string;
  test_features: string;
  /** Computes the run again; empty where the features were not files. */
  command: string;
}

export interface Images {
  dataset: string;
  classes: string[];
  names: string[];
  labels: Packed;
  groupNames?: string[];
  groups?: Packed;
}

type Waiting = { resolve: (value: unknown) => void; reject: (error: Error) => void };

const waiting = new Map<string, Waiting>();
const received = new Map<string, Promise<unknown>>();

declare global {
  interface Window {
    histobench: { receive(key: string, value: unknown): void };
  }
}

export function listen(onSite: (site: Site) => void): void {
  window.histobench = {
    receive(key, value) {
      if (key === "site") {
        onSite(value as Site);
        return;
      }
      waiting.get(key)?.resolve(value);
      waiting.delete(key);
    },
  };
}

/** The value of one data file, loaded when first asked for. */
export function load<T>(key: string): Promise<T> {
  let promise = received.get(key);
  if (!promise) {
    promise = new Promise((resolve, reject) => {
      waiting.set(key, { resolve, reject });
      const element = document.createElement("script");
      element.src = `data/${key}.js`;
      element.onload = () => element.remove();
      element.onerror = () => {
        element.remove();
        waiting.delete(key);
        received.delete(key);
        reject(new Error(`The data file data/${key}.js is missing.`));
      };
      document.head.append(element);
    });
    received.set(key, promise);
  }
  return promise as Promise<T>;
}

/** The numbers of a packed array. */
export function unpack(packed: Packed): Uint8Array | Uint16Array | Int32Array | Float32Array {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  const kinds = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float32: Float32Array };
  return new kinds[packed.type](bytes.buffer);
}

/** Probabilities from their sixteen-bit codes: even steps of the log-odds, see probability_code.py. */
export function decodeProbabilities(packed: Packed): Float64Array {
  const codes = unpack(packed);
  const values = new Float64Array(codes.length);
  for (let k = 0; k < codes.length; k++) {
    const code = codes[k];
    values[k] =
      code === 0 ? 0 : code === 65535 ? 1 : code === 65534 ? NaN : 1 / (1 + Math.exp(20 - ((code - 1) / 65532) * 40));
  }
  return values;
}

/** What a row of the predictions is. */
export function unitOf(board: Pick<BoardFacts, "task" | "setting">): string {
  return board.task === "Patient" || board.setting === "patients" ? "patient" : "test image";
}

/** What is known about a metric of a run. */
export function metricOf(site: Site, name: string): Metric {
  return site.metrics.find((metric) => metric.name === name) ?? { name, label: name, short: name, lower: false, tested: false, offered: false };
}

/** The metrics that a board has, the main one first. */
export function metricsOf(site: Site, board: number): Metric[] {
  return site.boards[board].metrics.map((name) => metricOf(site, name));
}

/** What a dataset has besides images: classes, or other targets. */
export function targetsOf(dataset: DatasetFacts): string {
  return [...(dataset.classes ? [`${dataset.classes} classes`] : []), ...dataset.targets].join(", ");
}

export function boardName(board: Omit<BoardFacts, "metrics">): string {
  return board.setting ? `${board.task} ${settingName(board.setting)}` : board.task;
}

export function settingName(setting: string): string {
  const few = setting.match(/^(\d+)way_(\d+)shot$/);
  if (few) return `${few[1]}-way ${few[2]}-shot`;
  const share = setting.match(/^([\d.]+)pct$/);
  return share ? `${share[1]}% of labels` : setting;
}

export function runName(site: Site, run: number): string {
  return site.runs.name[run] || site.encoders[site.runs.encoder[run]].name;
}
