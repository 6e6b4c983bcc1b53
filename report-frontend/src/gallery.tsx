// Test images as tiles: thumbnail where there is one, what was predicted and what is true.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useData } from "./parts";
import { unpack, type Images, type Packed, type Site } from "./data";
import { decimals, percent } from "./format";

export interface Thumbs {
  has: (image: number) => boolean;
  address: (image: number) => string;
}

interface ThumbFile {
  folder: string;
  numbers: Packed; // -1 for an image without a thumbnail
}

/** Where the thumbnails of an image set are; none where the site has no images. */
export function useThumbs(site: Site, key: string | undefined): Thumbs | null {
  const { value } = useData<ThumbFile>(key && site.thumbs.includes(key) ? `thumbs/${key}` : null);
  return useMemo(() => {
    if (!value) return null;
    const numbers = unpack(value.numbers);
    return { has: (image) => numbers[image] >= 0, address: (image) => `thumbs/${value.folder}/${numbers[image]}.webp` };
  }, [value]);
}

export interface Tile {
  image: number;
  label: string;
  predicted?: string;
  confidence?: number;
  wrong?: boolean;
}

const FIRST = 60;

export function Gallery({ tiles, images, thumbs, onOpen, empty, first = FIRST }: { tiles: Tile[]; images: Images; thumbs: Thumbs | null; onOpen?: (image: number) => void; empty: string; first?: number }) {
  const [limit, setLimit] = useState(first);
  useEffect(() => setLimit(first), [tiles]);
  if (!tiles.length) return <p class="fine">{empty}</p>;
  return (
    <>
      <ul class="gallery">
        {tiles.slice(0, limit).map((tile) => (
          <li key={tile.image}>
            <button type="button" onClick={() => onOpen?.(tile.image)} disabled={!onOpen} data-image={images.names[tile.image]} title={images.names[tile.image]}>
              <Thumb thumbs={thumbs} image={tile.image} name={images.names[tile.image]} />
              <span class="caption">
                {tile.predicted === undefined ? (
                  <b>{tile.label}</b>
                ) : (
                  <>
                    <b class={tile.wrong ? "wrong" : "right"}>{tile.wrong ? "✗" : "✓"} {tile.predicted}</b>
                    {tile.wrong && <span>is {tile.label}</span>}
                    {tile.confidence !== undefined && <span>{percent(tile.confidence, 1)}</span>}
                  </>
                )}
              </span>
            </button>
          </li>
        ))}
      </ul>
      {limit < tiles.length && (
        <p>
          <button type="button" onClick={() => setLimit(limit + 240)}>
            Show more ({(tiles.length - limit).toLocaleString("en")} left)
          </button>
        </p>
      )}
    </>
  );
}

export function Thumb({ thumbs, image, name }: { thumbs: Thumbs | null; image: number; name: string }) {
  return thumbs?.has(image) ? (
    <img src={thumbs.address(image)} alt={name} width="112" height="112" loading="lazy" decoding="async" />
  ) : (
    <span class="no-thumb" role="img" aria-label={name}>
      {name.length > 26 ? `…${name.slice(-25)}` : name}
    </span>
  );
}

interface DialogProps {
  images: Images;
  thumbs: Thumbs | null;
  image: number;
  classes: string[];
  label: number;
  predicted: number;
  probabilities: number[];
  onClose: () => void;
}

/** One image with everything the run says about it. */
export function ImageDialog({ images, thumbs, image, classes, label, predicted, probabilities, onClose }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current!.showModal();
  }, []);
  const group = images.groups ? images.groupNames![unpack(images.groups)[image]] : null;
  const order = classes.map((_, k) => k).sort((a, b) => (probabilities[b] || 0) - (probabilities[a] || 0)).slice(0, 12);
  return (
    <dialog ref={dialog} class="image-dialog" aria-label={images.names[image]} onClose={onClose} onClick={(event) => event.target === dialog.current && dialog.current!.close()}>
      <div class="inside">
        <Thumb thumbs={thumbs} image={image} name={images.names[image]} />
        <div>
          <h3>{images.names[image]}</h3>
          {group && <p class="fine">group {group}</p>}
          <p>
            predicted <b class={label === predicted ? "right" : "wrong"}>{classes[predicted]}</b>, is <b>{classes[label]}</b>
          </p>
          <ul class="bars">
            {order.map((k) => (
              <li key={k} class={k === label ? "true" : undefined}>
                <span>{classes[k]}</span>
                <i style={{ width: `${100 * (probabilities[k] || 0)}%` }} />
                <em>{decimals(probabilities[k])}</em>
              </li>
            ))}
          </ul>
          <button type="button" onClick={() => dialog.current!.close()} autoFocus>
            Close
          </button>
        </div>
      </div>
    </dialog>
  );
}
