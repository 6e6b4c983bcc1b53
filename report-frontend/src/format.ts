// Numbers and names as people read them.

export const MISSING = "–";

export function decimals(value: number | null | undefined, digits = 3): string {
  return value === null || value === undefined || Number.isNaN(value) ? MISSING : value.toFixed(digits).replace("-", "−");
}

export function signed(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? "−" : "+") + text;
}

export function interval(low: number | null | undefined, high: number | null | undefined, digits = 3): string {
  if (low === null || low === undefined || high === null || high === undefined) return "no interval";
  return `${decimals(low, digits)} to ${decimals(high, digits)}`;
}

export function percent(share: number, digits = 0): string {
  return Number.isNaN(share) ? MISSING : `${(100 * share).toFixed(digits)}%`;
}

export function pValue(p: number | null | undefined): string {
  if (p === null || p === undefined || Number.isNaN(p)) return MISSING;
  return p < 0.001 ? "< 0.001" : p.toFixed(3);
}

export function count(number: number, noun: string): string {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

export function compact(value: number): string {
  if (value >= 1e9) return `${trimmed(value / 1e9)} G`;
  if (value >= 1e6) return `${trimmed(value / 1e6)} M`;
  if (value >= 1e3) return `${trimmed(value / 1e3)} k`;
  return trimmed(value);
}

function trimmed(value: number): string {
  if (value > 0 && value < 0.1) return String(Number(value.toPrecision(2)));
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(2).replace(/\.?0+$/, "");
}

export function fileName(...parts: string[]): string {
  return parts.filter(Boolean).join("_").replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 120);
}

/** An ISO time as `2026-11-15 05:50 UTC`; anything else as it is. */
export function day(text: string): string {
  const match = text.match(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(Z|\+00:00)?$/);
  return match ? `${match[1]} ${match[2]}${match[3] ? " UTC" : ""}` : text;
}
