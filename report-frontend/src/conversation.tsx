// A conversation turn by turn: what the agent wrote, what came back, and the pictures it was shown.
import type { ComponentChildren } from "preact";
import { Notice } from "./parts";

export interface Talk {
  prompt: string;
  reference: string;
  error: string;
  turns: [text: string, kind: string, observation: string | null, feedback: string][];
  /** Addresses of the pictures in the task and in each observation; empty for one that was not kept. */
  pictures?: string[][];
}

export const KINDS: Record<string, string> = { execute: "runs code", proposal: "proposes a solution", proposal_unparsable: "proposes, but without an answer", invalid: "neither code nor solution", error: "the provider failed" };

/** `anchors`: turns can be jumped to, which only one conversation of a page may offer. */
export function Conversation({ talk, anchors = true }: { talk: Talk; anchors?: boolean }) {
  return (
    <div class="talk">
      {talk.prompt ? (
        <details class="card said user" open={anchors && talk.prompt.length < 2500}>
          <summary>
            <b>Task</b> <small>{talk.prompt.length.toLocaleString("en")} characters</small>
          </summary>
          <pre class="text">{talk.prompt}</pre>
        </details>
      ) : (
        <Notice>This recording comes without the task’s text.</Notice>
      )}
      <Pictures addresses={talk.pictures?.[0]} label="The picture of the task" />
      {talk.turns.map(([text, kind, observation, feedback], k) => (
        <section class="turn" id={anchors ? `turn-${k + 1}` : undefined} tabIndex={anchors ? -1 : undefined} aria-label={`Turn ${k + 1}`}>
          <div class="card said agent">
            <header>
              <b>Turn {k + 1}</b> <small class="kind">{KINDS[kind] ?? kind}</small>
            </header>
            <Message text={text} />
          </div>
          {observation !== null && (
            <details class="card said user" open={observation.length < 1500}>
              <summary>
                <b>Observation</b> {observation.includes("\n") && <small>{firstLine(observation)}</small>}
              </summary>
              <pre>{observation}</pre>
              <Pictures addresses={talk.pictures?.[k + 1]} label={`A picture that turn ${k + 1} asked for`} />
            </details>
          )}
          {feedback && (
            <details class="card said expert" open>
              <summary>
                <b>Expert feedback</b>
              </summary>
              <pre class="text">{feedback}</pre>
            </details>
          )}
        </section>
      ))}
      {talk.reference && (
        <details class="card said user">
          <summary>
            <b>Reference answer</b>
          </summary>
          <pre>{talk.reference}</pre>
        </details>
      )}
    </div>
  );
}

function Pictures({ addresses, label }: { addresses?: string[]; label: string }) {
  if (!addresses?.length) return null;
  return (
    <div class="shown-pictures">
      {addresses.map((address) =>
        address ? <img src={address} alt={label} loading="lazy" decoding="async" /> : <span class="no-thumb" role="img" aria-label={`${label}, which was not kept`}>picture not kept</span>,
      )}
    </div>
  );
}

export function jump(turn: number): void {
  const place = document.getElementById(`turn-${turn}`)!;
  place.scrollIntoView({ block: "start" });
  place.focus({ preventScroll: true });
}

function firstLine(text: string): string {
  const line = text.split("\n", 1)[0];
  return line.length > 80 ? `${line.slice(0, 79)}…` : line;
}

const TAGS = /<(thought|execute|solution)>([\s\S]*?)<\/\1>/g;

/** What the agent wrote, with thoughts, code and solutions told apart. Always text, never markup. */
function Message({ text }: { text: string }) {
  const parts: ComponentChildren[] = [];
  let end = 0;
  // A full stop after a tag is not worth a line.
  const plain = (piece: string) => /[\p{L}\p{N}]/u.test(piece) && parts.push(<p class="text">{piece.trim()}</p>);
  for (const match of text.matchAll(TAGS)) {
    plain(text.slice(end, match.index));
    const content = match[2].replace(/^\n+|\s+$/g, "");
    if (match[1] === "thought") parts.push(<p class="text thought">{content.trim()}</p>);
    else
      parts.push(
        <div class={match[1]}>
          <small>{match[1] === "execute" ? "code" : "solution"}</small>
          <pre>{content}</pre>
        </div>,
      );
    end = match.index! + match[0].length;
  }
  plain(text.slice(end));
  return <>{parts.length ? parts : <p class="text">(empty message)</p>}</>;
}
