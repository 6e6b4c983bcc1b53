// ROC, precision-recall and calibration from stored predictions.

export interface Predictions {
  n: number;
  c: number;
  labels: ArrayLike<number>;
  predicted: ArrayLike<number>;
  probabilities: Float64Array; // [n * c]
}

export interface Point {
  x: number;
  y: number;
}

/** False against true positive rate of one class against the rest; null where it has no curve. */
export function roc(p: Predictions, k: number): Point[] | null {
  const ranked = ranking(p, k);
  if (!ranked || ranked.positives === 0 || ranked.positives === p.n) return null;
  const negatives = p.n - ranked.positives;
  const points: Point[] = [{ x: 0, y: 0 }];
  for (const step of ranked.steps) points.push({ x: (step.seen - step.hits) / negatives, y: step.hits / ranked.positives });
  return thinned(points);
}

/** Recall against precision of one class against the rest. */
export function precisionRecall(p: Predictions, k: number): Point[] | null {
  const ranked = ranking(p, k);
  if (!ranked || ranked.positives === 0) return null;
  const points: Point[] = [{ x: 0, y: 1 }];
  for (const step of ranked.steps) {
    points.push({ x: step.hits / ranked.positives, y: step.hits / step.seen });
    if (step.hits === ranked.positives) break;
  }
  return thinned(points);
}

/** Area under the points by trapezoids. */
export function area(points: Point[]): number {
  let sum = 0;
  for (let k = 1; k < points.length; k++) sum += ((points[k].x - points[k - 1].x) * (points[k].y + points[k - 1].y)) / 2;
  return sum;
}

/** Counts at every threshold, equal scores together. */
function ranking(p: Predictions, k: number): { positives: number; steps: { seen: number; hits: number }[] } | null {
  const scores = Float64Array.from({ length: p.n }, (_, i) => p.probabilities[i * p.c + k]);
  if (scores.some(Number.isNaN)) return null;
  const order = Array.from({ length: p.n }, (_, i) => i).sort((a, b) => scores[b] - scores[a]);
  let hits = 0;
  const steps: { seen: number; hits: number }[] = [];
  order.forEach((i, place) => {
    if (p.labels[i] === k) hits++;
    if (place + 1 === p.n || scores[order[place + 1]] !== scores[i]) steps.push({ seen: place + 1, hits });
  });
  return { positives: hits, steps };
}

/** Points in the middle of a straight stretch say nothing; without them curves stay small. */
function thinned(points: Point[]): Point[] {
  return points.filter((point, k) => {
    const [before, after] = [points[k - 1], points[k + 1]];
    return !before || !after || Math.abs((point.x - before.x) * (after.y - before.y) - (after.x - before.x) * (point.y - before.y)) > 1e-12;
  });
}

export const BINS = 15;

export interface Bin {
  low: number;
  high: number;
  images: number;
  confidence: number;
  accuracy: number;
}

/** The bins of the expected calibration error: top label, fifteen of equal width, closed at the right. */
export function calibration(p: Predictions): Bin[] {
  const images = new Float64Array(BINS);
  const confidence = new Float64Array(BINS);
  const correct = new Float64Array(BINS);
  for (let i = 0; i < p.n; i++) {
    const top = topProbability(p, i);
    if (Number.isNaN(top)) continue;
    // Packed probabilities are exact to 1e-4: shares of votes that lie on an edge belong to the bin below it.
    const bin = Math.min(BINS - 1, Math.max(0, Math.ceil(top * BINS - 2e-3) - 1));
    images[bin]++;
    confidence[bin] += top;
    if (p.labels[i] === p.predicted[i]) correct[bin]++;
  }
  return Array.from({ length: BINS }, (_, bin) => ({
    low: bin / BINS,
    high: (bin + 1) / BINS,
    images: images[bin],
    confidence: confidence[bin] / images[bin],
    accuracy: correct[bin] / images[bin],
  })).filter((bin) => bin.images > 0);
}

export function topProbability(p: Predictions, i: number): number {
  let top = NaN;
  for (let k = 0; k < p.c; k++) {
    const value = p.probabilities[i * p.c + k];
    if (!(value <= top) && !Number.isNaN(value)) top = value;
  }
  return top;
}

/** Counts [true][predicted]. */
export function confusion(p: Predictions): number[][] {
  const table = Array.from({ length: p.c }, () => new Array<number>(p.c).fill(0));
  for (let i = 0; i < p.n; i++) table[p.labels[i]][p.predicted[i]]++;
  return table;
}
