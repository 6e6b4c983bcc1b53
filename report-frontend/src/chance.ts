// What guessing gives, where that does not depend on how many images each class has.
import * as Plot from "@observablehq/plot";
import type { Palette } from "./theme";

export function chanceLevel(metric: string, classes: number, setting = ""): number | null {
  const way = Number(/^(\d+)way/.exec(setting)?.[1] ?? classes);
  return { balanced_accuracy: way ? 1 / way : null, auroc: 0.5, mcc: 0 }[metric] ?? null;
}

export const chanceWords = (chance: number | null) => (chance === null ? "" : ` Chance is ${chance.toFixed(3)} (dashed, where it is in view).`);

/** A dashed line at chance, unless it would press the values together. */
export function chanceLine(chance: number | null | undefined, values: number[], axis: "x" | "y", palette: Palette): Plot.Markish[] {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (chance == null || chance < least - (most - least) / 2) return [];
  const style = { stroke: palette.line, strokeDasharray: "4,4", strokeWidth: 1.2 };
  return [axis === "x" ? Plot.ruleX([chance], style) : Plot.ruleY([chance], style)];
}
