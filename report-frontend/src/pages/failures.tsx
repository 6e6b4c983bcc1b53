// Failure cards: the region, what the tool said, what lay near it, and the conversation.
import { useState } from "preact/hooks";
import { Conversation, type Talk } from "../conversation";
import { count, percent } from "../format";
import { Loading, Segments, useData } from "../parts";
import type { Line } from "./consult";

interface Card {
  kind: string;
  id: string;
  group: string | null;
  picture: string;
  reference: string;
  first: string | null;
  final: string | null;
  confidence: number | null;
  tool: { label: string; confidence: number; manipulated: boolean; says: string; neighbours: [label: string, picture: string][]; percentile: number | null } | null;
  talk: Talk;
}

const KINDS: Record<string, { short: string; long: string }> = {
  followed: { short: "Same as tool", long: "gave the same wrong answer as the tool" },
  left: { short: "Unlike tool", long: "did not give the tool’s right answer" },
  own: { short: "Own error", long: "gave a wrong answer of its own" },
  deferred: { short: "Deferred", long: "deferred" },
  unanswered: { short: "No answer", long: "gave no answer that can be read" },
};

/** What the tool was made to do in an arm, seen from one case. */
const MANIPULATED: Record<string, string> = { swap: "swapped for random weights", shuffled: "another case’s answers" };

const FIRST = 6;

export function Failures({ study, place, line }: { study: number; place: number; line: Line }) {
  const total = Object.values(line.failures).reduce((a, b) => a + b, 0);
  const { value: cards, error } = useData<Card[]>(total ? `failures/${study}-${place}` : null);
  const kinds = Object.keys(KINDS).filter((kind) => line.failures[kind]);
  const [chosen, setKind] = useState("");
  const [limit, setLimit] = useState(FIRST);
  const kind = kinds.includes(chosen) ? chosen : "";
  const shown = (cards ?? []).filter((card) => !kind || card.kind === kind);
  return (
    <section class="card">
      <header class="figure-head">
        <h2>Failures in arm {line.arm}</h2>
        {kinds.length > 1 && <Segments label="Kind of failure" value={kind} options={[{ value: "", label: `All ${total}` }, ...kinds.map((name) => ({ value: name, label: `${KINDS[name].short} ${line.failures[name]}` }))]} onChange={setKind} />}
      </header>
      {!total ? (
        <p class="fine">Every final answer is right.</p>
      ) : !cards ? (
        <Loading error={error} />
      ) : (
        <>
          <p class="fine">
            {kinds.map((name) => `${line.failures[name]} ${KINDS[name].long}`).join(", ")}, of {count(line.cases, "case")}{line.repeats > 1 && " (first repeat)"}, without weights. {cards.length < total ? `The ${cards.length} with the highest stated confidence are shown` : "Those with the highest stated confidence are first"}.
          </p>
          <ul class="failures">
            {shown.slice(0, limit).map((card) => (
              <li key={`${card.kind} ${card.id}`}>
                <FailureCard card={card} arm={line.arm} />
              </li>
            ))}
          </ul>
          {limit < shown.length && (
            <p>
              <button type="button" onClick={() => setLimit(limit + 24)}>Show more ({shown.length - limit} left)</button>
            </p>
          )}
        </>
      )}
    </section>
  );
}

function FailureCard({ card, arm }: { card: Card; arm: string }) {
  const [open, setOpen] = useState(false);
  const { tool } = card;
  const mark = (label: string | null) => (label === card.reference ? "right" : "wrong");
  return (
    <article class="failure" aria-label={`Case ${card.id}: ${KINDS[card.kind].long}`}>
      <div class="case">
        <Picture address={card.picture} label={`The region of case ${card.id}`} />
        <div>
          <p class={`kind-of ${card.kind}`}>{KINDS[card.kind].long}</p>
          <dl>
            <dt>Is</dt>
            <dd><b>{card.reference}</b></dd>
            <dt>First answer</dt>
            <dd class={mark(card.first)}>{card.first ?? "none"}</dd>
            {tool && (
              <>
                <dt>Tool</dt>
                <dd>
                  <span class={mark(tool.label)}>{tool.label}</span> <small>{percent(tool.confidence)} sure{tool.manipulated && `; ${MANIPULATED[arm] ?? "wrong by design"}`}</small>
                </dd>
              </>
            )}
            <dt>Final answer</dt>
            <dd>
              <b class={mark(card.final)}>{card.final ?? (card.kind === "deferred" ? "deferred" : "none")}</b> {card.confidence !== null && <small>{percent(card.confidence)} sure</small>}
            </dd>
          </dl>
        </div>
      </div>
      {tool && (
        <>
          <p class="said-by-tool"><small>predict</small> {tool.says}</p>
          {tool.neighbours.length > 0 && (
            <ol class="near" aria-label="Nearest training regions">
              {tool.neighbours.map(([label, picture]) => (
                <li>
                  <Picture address={picture} label={`Neighbour: ${label}`} />
                  <span class={mark(label)}>{label}</span>
                </li>
              ))}
            </ol>
          )}
        </>
      )}
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Conversation <small>{count(card.talk.turns.length, "turn")}</small></summary>
        {open && <Conversation talk={card.talk} anchors={false} />}
      </details>
      <p class="fine">case {card.id}{card.group && `, group ${card.group}`}</p>
    </article>
  );
}

function Picture({ address, label }: { address: string; label: string }) {
  return address ? <img src={address} alt={label} width="256" height="256" loading="lazy" decoding="async" /> : <span class="no-thumb" role="img" aria-label={`${label}, not at hand`}>no picture</span>;
}
