// Names beside the points of a scatter plot, where there is room for them.

export interface Side {
  dx: number;
  dy: number;
  anchor: "start" | "middle" | "end";
}

export const SIDES: Side[] = [
  { dx: 0, dy: -13, anchor: "middle" },
  { dx: 0, dy: 15, anchor: "middle" },
  { dx: 10, dy: 0, anchor: "start" },
  { dx: -10, dy: 0, anchor: "end" },
];

export interface Labelled<T> {
  point: T;
  x: number;
  y: number;
  text: string;
}

/** Names where there is room for them; a point whose name fits nowhere is named when pointed at. */
export function placeLabels<T>(points: Labelled<T>[], width: number): (Labelled<T> & { side: Side })[] {
  type Box = [number, number, number, number];
  const taken: Box[] = points.map((p) => [p.x - 5, p.y - 5, p.x + 5, p.y + 5]);
  const placed: (Labelled<T> & { side: Side })[] = [];
  for (const p of points) {
    const w = p.text.length * 7;
    for (const side of SIDES) {
      const x = p.x + side.dx - (side.anchor === "middle" ? w / 2 : side.anchor === "end" ? w : 0);
      const box: Box = [x, p.y + side.dy - 7, x + w, p.y + side.dy + 7];
      const free = box[0] > 50 && box[2] < width && taken.every((t) => box[2] < t[0] || t[2] < box[0] || box[3] < t[1] || t[3] < box[1]);
      if (free) {
        taken.push(box);
        placed.push({ ...p, side });
        break;
      }
    }
  }
  return placed;
}
