// Tables of values for the keyboard: arrow keys move within, Tab goes in and out.
import { useEffect, useRef } from "preact/hooks";

const CELL = "[data-cell]:not(:disabled)";
const STEPS: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** For a table whose cells hold links or buttons marked with `data-cell`. */
export function useGrid() {
  const table = useRef<HTMLTableElement>(null);
  useEffect(() => {
    const element = table.current!;
    const cells = [...element.querySelectorAll<HTMLElement>(CELL)];
    if (!cells.some((cell) => cell.tabIndex === 0 && cell.dataset.entry)) enter(element, cells[0]);
    const move = (event: KeyboardEvent) => {
      const step = STEPS[event.key];
      const from = (document.activeElement as HTMLElement).closest<HTMLElement>(CELL);
      if (!step || !from || !element.contains(from)) return;
      const next = neighbour(element, from, step);
      if (!next) return;
      event.preventDefault();
      enter(element, next);
      next.focus();
    };
    const focused = (event: FocusEvent) => {
      const cell = (event.target as HTMLElement).closest<HTMLElement>(CELL);
      if (cell) enter(element, cell);
    };
    element.addEventListener("keydown", move);
    element.addEventListener("focusin", focused);
    return () => {
      element.removeEventListener("keydown", move);
      element.removeEventListener("focusin", focused);
    };
  });
  return table;
}

/** Make one cell the one that Tab reaches. */
function enter(table: HTMLElement, cell: HTMLElement | undefined): void {
  for (const other of table.querySelectorAll<HTMLElement>("[data-cell]")) {
    other.tabIndex = other === cell ? 0 : -1;
    if (other === cell) other.dataset.entry = "yes";
    else delete other.dataset.entry;
  }
}

/** The next cell in a direction, over gaps. */
function neighbour(table: HTMLTableElement, from: HTMLElement, [down, right]: [number, number]): HTMLElement | null {
  const rows = [...table.tBodies[0].rows];
  const td = from.closest("td")!;
  let r = rows.indexOf(td.parentElement as HTMLTableRowElement);
  let c = td.cellIndex;
  for (;;) {
    r += down;
    c += right;
    const place = rows[r]?.cells[c];
    if (!place) return null;
    const cell = place.querySelector<HTMLElement>(CELL);
    if (cell) return cell;
  }
}
