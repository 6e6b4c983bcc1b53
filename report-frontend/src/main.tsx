// The frame of every page: navigation, theme, and which page the address asks for.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { listen, type Site } from "./data";
import { href, useRoute } from "./route";
import { isDark, setTheme, startTheme, useTheme } from "./theme";
import { Leaderboard } from "./pages/leaderboard";
import { RunPage } from "./pages/run";
import { MethodsPage } from "./pages/methods";
import { DatasetPage, DatasetsPage } from "./pages/dataset";
import { ComparePage } from "./pages/compare";
import { ConsultPage } from "./pages/consult";
import { RobustnessPage } from "./pages/robustness";
import { SimilarityPage } from "./pages/similarity";
import { ChoosePage } from "./pages/choose";
import { ShiftPage } from "./pages/shift";
import { AgentPage, AgentsPage, EpisodePage } from "./pages/agents";
import { Notice } from "./parts";

/** What a page is called in tabs, bookmarks and prints. */
function titleOf(page: string, parts: string[], site: Site): string {
  if (page === "run") return `${parts[1]} on ${parts[0]}, ${parts[2]}`;
  if (parts.length) return parts.join(", ");
  const name = page || home(site) || "leaderboard";
  return name === "choose" ? "Which encoder?" : name[0].toUpperCase() + name.slice(1);
}

function App({ site }: { site: Site }) {
  const route = useRoute();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const place = [route.page, ...route.parts].join("/");
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return;
    }
    scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [place]);
  useEffect(() => {
    document.title = `${titleOf(route.page, route.parts, site)}: ${site.title}`;
  }, [place, site]);
  const links = [
    ...(site.boards.length ? [{ page: "", label: "Leaderboard" }, { page: "datasets", label: "Datasets" }] : []),
    ...(site.encoders.length > 1 ? [{ page: "compare", label: "Compare" }] : []),
    ...(site.robustness ? [{ page: "robustness", label: "Robustness" }] : []),
    ...(site.similarity ? [{ page: "similarity", label: "Similarity" }] : []),
    ...(site.choice ? [{ page: "choose", label: "Choose" }] : []),
    ...(site.shift ? [{ page: "fine-tuning", label: "Fine-tuning" }] : []),
    ...(site.agents.length ? [{ page: "agents", label: "Agents" }] : []),
    ...(site.consult.length ? [{ page: "consult", label: "Consult" }] : []),
    { page: "methods", label: "Methods" },
  ];
  const section = { dataset: "datasets", run: "", agent: "agents", episode: "agents", "": home(site) }[route.page] ?? route.page;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={href("")}>
          <img src="assets/icon.svg" alt="" width="28" height="28" />
          <span>{site.title}</span>
        </a>
        <nav aria-label="Pages">
          {links.map((link) => (
            <a key={link.page} href={href(link.page)} aria-current={section === link.page ? "page" : undefined}>
              {link.label}
            </a>
          ))}
        </nav>
        <ThemeButton />
      </header>
      {site.live && <Live built={site.built} />}
      <main id="main" ref={main} tabIndex={-1}>
        <Page site={site} />
      </main>
      <footer class="foot">
        <p>
          Built {new Date(site.built).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })} with histobench {site.version}. Intervals are
          95% intervals; <a href={href("methods")}>what they mean</a>.
        </p>
      </footer>
    </>
  );
}

/** The page that is shown first: what the report has. */
function home(site: Site): "" | "agents" | "consult" {
  return site.boards.length ? "" : site.agents.length ? "agents" : "consult";
}

function Page({ site }: { site: Site }) {
  const route = useRoute();
  switch (route.page) {
    case "":
      return { "": <Leaderboard site={site} route={route} />, agents: <AgentsPage site={site} />, consult: <ConsultPage site={site} route={route} /> }[home(site)];
    case "run":
      return <RunPage key={route.parts.join("/")} site={site} route={route} />;
    case "datasets":
      return <DatasetsPage site={site} />;
    case "dataset":
      return <DatasetPage key={route.parts[0]} site={site} route={route} />;
    case "compare":
      return <ComparePage site={site} route={route} />;
    case "agents":
      return <AgentsPage site={site} />;
    case "agent":
      return <AgentPage key={route.parts[0]} site={site} route={route} />;
    case "episode":
      return <EpisodePage key={route.parts.join("/")} site={site} route={route} />;
    case "robustness":
      return <RobustnessPage site={site} route={route} />;
    case "similarity":
      return <SimilarityPage site={site} route={route} />;
    case "choose":
      return <ChoosePage site={site} />;
    case "fine-tuning":
      return <ShiftPage site={site} />;
    case "consult":
      return <ConsultPage site={site} route={route} />;
    case "methods":
      return <MethodsPage site={site} />;
    default:
      return (
        <Notice kind="problem">
          There is no page {route.page}. <a href={href("")}>Go to the leaderboard</a>
        </Notice>
      );
  }
}

function ThemeButton() {
  useTheme();
  const dark = isDark();
  return (
    <button type="button" class="theme" onClick={() => setTheme(dark ? "light" : "dark")} aria-label={dark ? "Switch to light colors" : "Switch to dark colors"} title={dark ? "Light" : "Dark"}>
      <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
        {dark ? (
          <path fill="currentColor" d="M12 7a5 5 0 1 0 0 10 5 5 0 0 0 0-10Zm0-6 1.2 3.5h-2.4L12 1Zm0 22-1.2-3.5h2.4L12 23ZM1 12l3.5-1.2v2.4L1 12Zm22 0-3.5 1.2v-2.4L23 12ZM4.2 4.2l3.3 1.6-1.7 1.7-1.6-3.3Zm15.6 15.6-3.3-1.6 1.7-1.7 1.6 3.3ZM4.2 19.8l1.6-3.3 1.7 1.7-3.3 1.6ZM19.8 4.2l-1.6 3.3-1.7-1.7 3.3-1.6Z" />
        ) : (
          <path fill="currentColor" d="M20.7 14.3A9 9 0 0 1 9.7 3.3a.6.6 0 0 0-.8-.7A10 10 0 1 0 21.4 15a.6.6 0 0 0-.7-.7Z" />
        )}
      </svg>
    </button>
  );
}

/** While runs are going on: look for a newer build and show it. */
function Live({ built }: { built: string }) {
  const [lost, setLost] = useState(false);
  useEffect(() => {
    const timer = setInterval(async () => {
      try {
        const answer = await fetch("built.txt", { cache: "no-store" });
        setLost(!answer.ok);
        if (answer.ok && (await answer.text()).trim() !== built) location.reload();
      } catch {
        setLost(true);
      }
    }, 3000);
    return () => clearInterval(timer);
  }, [built]);
  return (
    <p class={lost ? "live lost" : "live"} role="status">
      {lost ? "The server has stopped; this is what it showed last." : "Live: the page follows the results folder."}
    </p>
  );
}

startTheme();
listen((site) => {
  render(<App site={site} />, document.getElementById("app")!);
});
