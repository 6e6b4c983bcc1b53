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
  /** For colour-blind readers, after Okabe and Ito: neighbours differ in lightness too. Maps add shapes. */
  categories: string[];
}

/** On the page: the colours of app.css, so that theme and print need no new drawing. */
export const SCREEN: Palette = {
  ink: "var(--ink)",
  muted: "var(--muted)",
  line: "var(--strong-line)",
  grid: "var(--grid)",
  surface: "var(--surface)",
  accent: "var(--accent)",
  second: "var(--second)",
  tint: "var(--tint)",
  categories: Array.from({ length: 10 }, (_, k) => `var(--category-${k})`),
};

/** In files: black on white, as journals print. The categories are those of the light theme. */
export const PAPER: Palette = {
  ink: "#000000",
  muted: "#333333",
  line: "#555555",
  grid: "#dddddd",
  surface: "#ffffff",
  accent: "#4b3a94",
  second: "#b3296b",
  tint: "#d9d3ee",
  categories: ["#0072b2", "#c04f00", "#007a5a", "#a8457d", "#8a6d00", "#1f1b2e", "#6f6c7a", "#6a3d9a", "#d0021b", "#5a3a1a"],
};

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

/** Draws a component again when the theme changes. */
export function useTheme(): void {
  const [, redraw] = useState(0);
  useEffect(() => {
    const update = () => redraw((n) => n + 1);
    addEventListener("histobench-theme", update);
    return () => removeEventListener("histobench-theme", update);
  }, []);
}

export function startTheme(): void {
  apply();
  dark.addEventListener("change", apply);
}
