/* Unpacks the columns of the page's data (see packing.py), and writes numbers as people read them. */
"use strict";

const kvtrace = {};

kvtrace.read = (id) => JSON.parse(document.getElementById(id).textContent);

/* Everything in a document that is a packed column becomes an array of numbers. */
kvtrace.unpack = async function unpack(value) {
  if (Array.isArray(value)) return Promise.all(value.map(unpack));
  if (value === null || typeof value !== "object") return value;
  if (typeof value.data === "string" && value.kind) return unpackColumn(value);
  const keys = Object.keys(value);
  const inner = await Promise.all(keys.map((key) => unpack(value[key])));
  return Object.fromEntries(keys.map((key, place) => [key, inner[place]]));
};

async function unpackColumn({ kind, count, data, low, ratio, error }) {
  const text = atob(data);
  const deflated = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) deflated[at] = text.charCodeAt(at);
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = Number(kind[1]);
  const bytes = new Uint8Array(count * size);
  for (let plane = 0; plane < size; plane++) {
    for (let at = 0; at < count; at++) bytes[at * size + plane] = planes[plane * count + at];
  }
  const types = { f8: Float64Array, f4: Float32Array, u1: Uint8Array, u2: Uint16Array };
  const values = new types[kind](bytes.buffer);
  if (ratio === undefined) return values;
  const scale = new Float64Array(kind === "u1" ? 256 : 65536);
  scale[0] = NaN;
  for (let code = 2; code < scale.length; code++) scale[code] = low * ratio ** (code - 2);
  return { codes: values, scale, error };
}

/* Three significant digits, thousands in full. */
kvtrace.short = (value) => {
  const digits = value === 0 || value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
};

const inUnit = (value, units) => {
  const [name, factor] = units.findLast(([, least]) => Math.abs(value) >= least) ?? units[0];
  return `${factor === 1 && Number.isInteger(value) ? kvtrace.count(value) : kvtrace.short(value / factor)} ${name}`;
};

/* On axes, where round numbers need no decimals. */
kvtrace.round = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 4 });

kvtrace.roundBytes = (value) => kvtrace.bytes(value).replace(/\.0+ /, " ");

kvtrace.count = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 });
kvtrace.bytes = (value) => inUnit(value, [["B", 1], ["KB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]);
kvtrace.micros = (value) => inUnit(value, [["µs", 1], ["ms", 1e3], ["s", 1e6]]);
kvtrace.millis = (value) => kvtrace.micros(value * 1e3);

/* The value below which a share of the known values lies; sorts a copy. */
kvtrace.quantile = (values, share) => {
  const known = Float64Array.from(values).filter((value) => !Number.isNaN(value)).sort();
  return known.length ? known[Math.min(known.length - 1, Math.ceil(share * known.length))] : NaN;
};
