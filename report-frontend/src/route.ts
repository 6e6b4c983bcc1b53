// Addresses of pages: everything after # so that the site needs no server.
import { useEffect, useState } from "preact/hooks";
import type { Site } from "./data";

export interface Route {
  page: string;
  parts: string[];
  query: URLSearchParams;
}

export function parse(hash: string): Route {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...parts] = path.split("/").map(decode);
  return { page, parts, query: new URLSearchParams(query) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function href(page: string, parts: string[] = [], query: Record<string, string | number | undefined> = {}): string {
  const path = [page, ...parts].map(encodeURIComponent).join("/");
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined && value !== "") search.set(key, String(value));
  const text = search.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const update = () => setRoute(parse(location.hash));
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}

/** Change the address of the present page without a new entry in the history. */
export function replaceQuery(route: Route, changes: Record<string, string | undefined>): void {
  const query: Record<string, string | undefined> = { ...Object.fromEntries(route.query), ...changes };
  history.replaceState(null, "", href(route.page, route.parts, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** The page of a run; it names the run by what it is, so that links outlive a new build. */
export function runHref(site: Site, run: number): string {
  const board = site.boards[site.runs.board[run]];
  const name = site.runs.name[run] || site.encoders[site.runs.encoder[run]].name;
  return href("run", [site.datasets[site.runs.dataset[run]].name, name, board.task, board.setting || "-", board.preset || "-"]);
}

export function findRun(site: Site, parts: string[]): number {
  const [dataset, name, task, setting, preset] = parts;
  return site.runs.encoder.findIndex((encoder, run) => {
    const board = site.boards[site.runs.board[run]];
    return (
      site.datasets[site.runs.dataset[run]].name === dataset &&
      (site.runs.name[run] || site.encoders[encoder].name) === name &&
      board.task === task &&
      (board.setting || "-") === setting &&
      (board.preset || "-") === preset
    );
  });
}
