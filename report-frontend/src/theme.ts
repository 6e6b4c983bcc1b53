// Light and dark, and the colours that charts take from them.
import { useEffect, useState } from "preact/hooks";

export type Choice = "auto" | "light" | "dark";

export interface Palette {
  ink: string;
  muted: string;
  line: string;
  grid: string;
  surface: string;
  accent: string;
  second: string;
  tint: string;
  /** Okabe and Ito's colours, in an order that stays apart for colour-blind readers. */
  categories: string[];
}

export const LIGHT: Palette = {
  ink: "#1d1a26",
  muted: "#5d586b",
  line: "#8b8699",
  grid: "#e4e1ea",
  surface: "#ffffff",
  accent: "#4b3a94",
  second: "#b3296b",
  tint: "#d9d3ee",
  categories: ["#0072b2", "#d55e00", "#007a5a", "#a8457d", "#8a6d00", "#2e86c1", "#5b5b5b", "#6a3d9a", "#b15928", "#17736b"],
};

export const DARK: Palette = {
  ink: "#f1eff6",
  muted: "#b3aec2",
  line: "#8983a0",
  grid: "#35313f",
  surface: "#1c1924",
  accent: "#b3a4ff",
  second: "#ff8fbf",
  tint: "#453a78",
  categories: ["#56b4e9", "#f0903f", "#2fc79a", "#e58fc0", "#f0e442", "#9ad1f5", "#c9c5d6", "#c3a6ff", "#e0a873", "#6fd6cb"],
};

/** For files: black on white, as journals print. */
export const PAPER: Palette = { ...LIGHT, ink: "#000000", muted: "#333333", line: "#555555", grid: "#dddddd", surface: "#ffffff" };

const KEY = "histobench-theme";

function stored(): Choice {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "auto";
  } catch {
    return "auto";
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let choice: Choice = stored();

export function isDark(): boolean {
  return choice === "dark" || (choice === "auto" && dark.matches);
}

function apply(): void {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  dispatchEvent(new Event("histobench-theme"));
}

export function setTheme(next: Choice): void {
  choice = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Private windows may refuse; the choice then lasts until the page is closed.
  }
  apply();
}

export function useTheme(): { choice: Choice; palette: Palette } {
  const [, redraw] = useState(0);
  useEffect(() => {
    const update = () => redraw((n) => n + 1);
    addEventListener("histobench-theme", update);
    return () => removeEventListener("histobench-theme", update);
  }, []);
  return { choice, palette: isDark() ? DARK : LIGHT };
}

export function startTheme(): void {
  apply();
  dark.addEventListener("change", apply);
}
