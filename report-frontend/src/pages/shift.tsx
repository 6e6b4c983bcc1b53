// Does fine-tuning change the ranking? Frozen and adapted networks side by side, one table per dataset.
import type { Site } from "../data";
import { Loading, Notice, TableDownloads, useData } from "../parts";
import { href } from "../route";

interface Shift {
  title: string;
  header: string[];
  rows: string[][];
  notes: string[];
}

export function ShiftPage({ site }: { site: Site }) {
  const { value: tables, error } = useData<Shift[]>(site.shift ? "shift" : null);
  if (!site.shift) return <Notice kind="problem">This report has no fine-tuned networks. <a href={href("")}>Go to the start</a></Notice>;
  if (!tables) return <Loading error={error} />;
  return (
    <>
      <div class="title">
        <h1>Fine-tuning</h1>
        <p class="lead">Does the ranking change? Each network frozen and with LoRA, on the same test images.</p>
      </div>
      {tables.map(({ title, header, rows, notes }) => (
        <section class="card" key={title}>
          <header class="figure-head">
            <h2>{title}</h2>
            <TableDownloads table={() => ({ name: title, caption: `${title}. ${notes.join(" ")}`, header, rows })} />
          </header>
          <div class="scroll">
            <table class="plain">
              <thead>
                <tr>{header.map((name, k) => <th scope="col" class={k ? "number" : undefined} key={name}>{name}</th>)}</tr>
              </thead>
              <tbody>
                {rows.map(([name, ...cells]) => (
                  <tr key={name}>
                    <th scope="row">{name}</th>
                    {cells.map((cell, k) => <td class="number" key={k}>{cell}</td>)}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {notes.map((note) => <p class="fine" key={note}>{note}</p>)}
        </section>
      ))}
    </>
  );
}
