// Saves what a picture shows: as an image, or its values as CSV, JSON or Parquet. Nothing is requested anew.

import { make } from "./dom.js";
import { colours } from "./shades.js";

const TITLE_PX = 26;

// picture: name, of the file; title(); view, the element with its canvases; table(): columns [name, kind, values] with a kind
// of integer, number or text.
export function exportMenu(picture) {
  const offer = (kind, words) => make("button", { "data-kind": kind, onclick: () => save(picture, kind) }, words);
  const copy = make("button", { "data-kind": "link", onclick: () => navigator.clipboard.writeText(location.href).then(() => (copy.textContent = "Copied")) }, "Copy link");
  return make("details", { class: "export", ontoggle: () => (copy.textContent = "Copy link") }, make("summary", {}, "Export"),
    make("span", {}, navigator.clipboard ? copy : null, offer("png", "PNG"), offer("csv", "CSV"), offer("json", "JSON"), offer("parquet", "Parquet")));
}

async function save(picture, kind) {
  const blob = await FORMS[kind](picture);
  const run = location.pathname.split("/").at(-1).slice(0, 8);
  const link = make("a", { href: URL.createObjectURL(blob), download: `${picture.name}-${run}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const FORMS = {
  png: (picture) => new Promise((resolve) => drawn(picture).toBlob(resolve, "image/png")),
  csv: ({ table }) => new Blob([lines(table())], { type: "text/csv" }),
  json: ({ title, table }) => new Blob([JSON.stringify({ title: title(), address: location.href, rows: records(table()) }, null, 1)], { type: "application/json" }),
  parquet: async ({ table }) => (await import("./parquet.js")).parquet(table()),
};

function lines(columns) {
  const rows = Array.from({ length: columns[0][2].length }, (_, row) => columns.map(([, , values]) => quoted(values[row])).join(","));
  return [columns.map(([name]) => name).join(","), ...rows, ""].join("\n");
}

// Text that a spreadsheet would take for a formula begins with an apostrophe.
function quoted(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// Numbers that JSON does not have are strings, as in the API.
function records(columns) {
  const plain = (value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
  return Array.from({ length: columns[0][2].length }, (_, row) => Object.fromEntries(columns.map(([name, , values]) => [name, plain(values[row])])));
}

// The canvases of the view and its other text, at their places, below a title.
function drawn({ view, title }) {
  const dot = devicePixelRatio;
  const area = view.getBoundingClientRect();
  const image = Object.assign(document.createElement("canvas"), { width: Math.ceil(area.width * dot), height: Math.ceil((area.height + TITLE_PX) * dot) });
  const pen = image.getContext("2d");
  const ink = colours();
  pen.fillStyle = ink.card;
  pen.fillRect(0, 0, image.width, image.height);
  pen.setTransform(dot, 0, 0, dot, 0, 0);
  pen.fillStyle = ink.ink;
  pen.font = "600 13px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.fillText(title(), 4, TITLE_PX / 2, area.width - 8);
  const place = (element) => {
    const { left, top, width, height } = element.getBoundingClientRect();
    return [left - area.left, top - area.top + TITLE_PX, width, height];
  };
  for (const canvas of view.querySelectorAll("canvas")) if (canvas.clientWidth) pen.drawImage(canvas, ...place(canvas));
  for (const element of view.querySelectorAll("span")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.textContent).join("").trim();
    if (!text) continue;
    const { font, color } = getComputedStyle(element);
    const [x, y, width, height] = place(element);
    const below = element.querySelector("span")?.getBoundingClientRect().height ?? 0;
    [pen.font, pen.fillStyle] = [font, color];
    pen.fillText(text, x + parseFloat(getComputedStyle(element).paddingLeft), y + (height - below) / 2, width);
  }
  return image;
}
