// Small pieces that several pages use.
import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { load, type Encoder } from "./data";
import { csv, latex, save, type Table } from "./download";
import { fileName } from "./format";

export function useData<T>(key: string | null): { value?: T; error?: string } {
  const [state, setState] = useState<{ key: string | null; value?: T; error?: string }>({ key: null });
  useEffect(() => {
    let current = true;
    if (key === null) return;
    load<T>(key).then(
      (value) => current && setState({ key, value }),
      (error: Error) => current && setState({ key, error: error.message }),
    );
    return () => {
      current = false;
    };
  }, [key]);
  return state.key === key ? state : {};
}

export function Loading({ error }: { error?: string }) {
  return error ? <Notice kind="problem">{error}</Notice> : <p class="loading" role="status">Loading…</p>;
}

export function Notice({ kind = "note", children }: { kind?: "note" | "warning" | "problem"; children: ComponentChildren }) {
  return (
    <div class={`notice ${kind}`} role={kind === "problem" ? "alert" : "note"}>
      {children}
    </div>
  );
}

interface SelectProps {
  label: string;
  value: string;
  options: { value: string; label: string; group?: string }[];
  onChange: (value: string) => void;
}

export function Select({ label, value, options, onChange }: SelectProps) {
  const groups = [...new Set(options.map((option) => option.group ?? ""))];
  return (
    <label class="control">
      <span>{label}</span>
      <select aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {groups.map((group) => {
          const members = options.filter((option) => (option.group ?? "") === group).map((option) => (
            <option key={option.value} value={option.value} selected={option.value === value}>
              {option.label}
            </option>
          ));
          return group ? <optgroup label={group}>{members}</optgroup> : members;
        })}
      </select>
    </label>
  );
}

interface SegmentsProps {
  label: string;
  value: string;
  options: { value: string; label: string }[];
  onChange: (value: string) => void;
}

export function Segments({ label, value, options, onChange }: SegmentsProps) {
  return (
    <div class="segments" role="group" aria-label={label}>
      {options.map((option) => (
        <button type="button" key={option.value} aria-pressed={option.value === value} onClick={() => onChange(option.value)}>
          {option.label}
        </button>
      ))}
    </div>
  );
}

export function TableDownloads({ table }: { table: () => Table }) {
  const write = (kind: "csv" | "tex") => {
    const made = table();
    save(`${fileName(made.name)}.${kind}`, kind === "csv" ? csv(made) : latex(made), "text/plain;charset=utf-8");
  };
  return (
    <span class="downloads">
      <button type="button" class="quiet" onClick={() => write("csv")} aria-label="Save the table as CSV">
        CSV
      </button>
      <button type="button" class="quiet" onClick={() => write("tex")} aria-label="Save the table as LaTeX">
        LaTeX
      </button>
    </span>
  );
}

export function CopyBox({ label, text, prose = false }: { label: string; text: string; prose?: boolean }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // From file:// some browsers refuse; the text can still be selected by hand.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <div class="copybox">
      <header>
        <h3>{label}</h3>
        <button type="button" class="quiet" onClick={copy} aria-live="polite" aria-label={`Copy: ${label}`}>
          {copied ? "Copied" : "Copy"}
        </button>
      </header>
      <pre tabIndex={0} class={prose ? "running" : undefined}>{text}</pre>
    </div>
  );
}

/** A sentence in which `...` is code. */
export function Coded({ text }: { text: string }) {
  return <>{text.split("`").map((part, k) => (k % 2 ? <code>{part}</code> : part))}</>;
}

const TERMS: Record<Encoder["terms"], string> = {
  open: "open license",
  "non-commercial": "non-commercial",
  restricted: "own terms",
  unknown: "license unknown",
};

export function termsLabel(terms: Encoder["terms"]): string {
  return TERMS[terms];
}

export function Breadcrumbs({ trail }: { trail: { label: string; href?: string }[] }) {
  return (
    <nav class="crumbs" aria-label="Breadcrumbs">
      <ol>
        {trail.map((step) => (
          <li>{step.href ? <a href={step.href}>{step.label}</a> : <span aria-current="page">{step.label}</span>}</li>
        ))}
      </ol>
    </nav>
  );
}
