// A segmentation: Dice of every class, and the worst and best images.
import { count, decimals, interval } from "../format";
import { TableDownloads } from "../parts";

export interface MaskData {
  /** `dice` is [value, low, high]. */
  classes: { name: string; pixels: number; dice: (number | null)[] }[];
  /** The rows of the sheet, the worst image first. */
  examples?: { image: string; dice: number }[];
  /** A PNG of a row per example: image, truth, prediction, mistakes. */
  sheet?: string;
}

export function MaskView({ target, name }: { target: MaskData; name: string }) {
  return (
    <div class="stack">
      <section class="card">
        <header class="figure-head">
          <h2>Classes</h2>
          <TableDownloads table={() => ({ name: `dice_${name}`, caption: "Dice of each class, with 95% intervals.", header: ["class", "pixels", "Dice", "low", "high"], rows: target.classes.map((each) => [each.name, each.pixels, ...each.dice]) })} />
        </header>
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th scope="col">Class</th>
                <th scope="col" class="number">True pixels</th>
                <th scope="col" class="number">Dice</th>
                <th scope="col">95% interval</th>
              </tr>
            </thead>
            <tbody>
              {target.classes.map(({ name: label, pixels, dice: [value, low, high] }) => (
                <tr key={label}>
                  <th scope="row">{label}</th>
                  <td class="number">{pixels.toLocaleString("en")}</td>
                  <td class="number">
                    <b>{decimals(value)}</b>
                  </td>
                  <td>{interval(low, high)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        <p class="fine">
          Averaged over the images that have the class in truth or prediction. For reference, Dice of random weights and of mean colors: the same readout on the network with random weights, and on the mean color of each patch. Dice of the grid: the true mask at the resolution of the patch tokens, about the highest value that any readout can reach.
        </p>
      </section>
      {target.sheet && target.examples && (
        <section class="card">
          <h2>Worst and best images</h2>
          <img class="sheet" src={`data:image/png;base64,${target.sheet}`} alt={`Image, truth, prediction and mistakes of ${count(target.examples.length, "image")}`} />
          <p class="fine">From left to right: image, truth, prediction, mistakes (red). From top to bottom: {target.examples.map((each) => `${each.image} (Dice ${decimals(each.dice)})`).join(", ")}. Truth and mistakes: ignored pixels are white.</p>
        </section>
      )}
    </div>
  );
}
