// Formats numbers and times. The API writes non-finite values as strings; number() converts them back.

// Float32 values come as their shortest decimals, which differ from the number by half a unit in the last place at most.
const FLOAT32_ROUNDING = 2 ** -24;

export function number(value) {
  if (typeof value === "number") return value;
  if (value === null || value === undefined) return null;
  return Number(value);
}

export function short(value, digits = 4) {
  const x = number(value);
  if (x === null) return "–";
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "Inf" : "−Inf";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-3) return x.toExponential(Math.min(digits - 2, 2)).replace("-", "−").replace("e+", "e");
  if (Number.isInteger(x)) return integer(x);
  return String(Number(x.toPrecision(digits))).replace("-", "−");
}

export function integer(value) {
  const x = number(value);
  return x === null ? "–" : Math.round(x).toLocaleString("en-US").replace("-", "−");
}

export function share(part, of = 1) {
  const x = number(part);
  if (x === null || !of) return "–";
  const percent = (100 * x) / of;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  return percent.toFixed(percent >= 10 || percent === 0 ? 0 : 1) + " %";
}

// A loss scale as a power of two: 2¹⁶.
export function scale(value) {
  const x = number(value);
  if (x === null) return "–";
  if (!(x > 0) || !Number.isFinite(x)) return short(x);
  const exponent = Math.round(Math.log2(x));
  if (Math.abs(x / 2 ** exponent - 1) > FLOAT32_ROUNDING) return short(x);
  return "2" + raised(exponent);
}

export function scaleLong(value) {
  const x = number(value);
  const power = scale(x);
  return power.startsWith("2") && x >= 1 && x < 2 ** 40 ? `${power} = ${integer(x)}` : power;
}

export function raised(exponent) {
  return [...String(exponent)].map((digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)])).join("");
}

export function ago(when, now = Date.now()) {
  if (!when) return "–";
  const seconds = Math.max(0, (now - Date.parse(when)) / 1000);
  return seconds < 1.5 ? "now" : span(seconds) + " ago";
}

export function span(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function dollars(amount) {
  if (amount === null || amount === undefined) return "–";
  return `$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

// Times are local, and carry their zone.
export function clock(when) {
  return when ? new Date(when).toLocaleTimeString("en-GB", { timeZoneName: "short" }) : "–";
}

export function clockWithoutZone(when) {
  return when ? new Date(when).toLocaleTimeString("en-GB") : "–";
}

const MOMENT = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };

export function moment(when) {
  return when ? new Date(when).toLocaleString("en-GB", MOMENT) : "–";
}

export function zone() {
  return new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date()).find(({ type }) => type === "timeZoneName").value;
}

export function plural(count, one, many = one + "s") {
  return `${integer(count)} ${count === 1 ? one : many}`;
}

// Any value of an event or of evidence, in one line.
export function plain(value) {
  if (typeof value === "number") return Number.isSafeInteger(value) ? String(value) : short(value, 6);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (typeof value === "object") {
    return Object.entries(value)
      .map(([name, inner]) => `${name} ${plain(inner)}`)
      .join(" · ");
  }
  return String(value);
}

// The names of a run's losses if it has several, or if a loss is known only from backward(). Of the lowest rank.
export function severalLosses({ latest = {} }) {
  return Object.keys(latest).filter((name) => /^loss(_backward)?@|^loss_backward$/.test(name)).sort();
}
