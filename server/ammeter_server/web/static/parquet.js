// Writes a table as a Parquet file: one row group, plain encoding, no compression, no nulls.

const TEXT = new TextEncoder();
const MAGIC = TEXT.encode("PAR1");
const [I32, I64, BINARY, LIST, STRUCT] = [5, 6, 8, 9, 12];

// By kind of a column: Parquet's physical type, and the bytes of its values.
const KINDS = {
  integer: { type: 2, bytes: (values) => new Uint8Array(BigInt64Array.from(values, (value) => BigInt(Math.round(value))).buffer) },
  number: { type: 5, bytes: (values) => new Uint8Array(Float64Array.from(values).buffer) },
  text: { type: 6, bytes: (values) => joined(values.flatMap((value) => lengthAndText(String(value)))) },
};

// columns: [name, kind, values] with a kind of KINDS.
export function parquet(columns) {
  const rows = columns[0]?.[2].length ?? 0;
  const parts = [MAGIC];
  let size = MAGIC.length;
  const chunks = columns.map(([name, kind, values]) => {
    const { type, bytes } = KINDS[kind];
    const data = bytes(values);
    const header = Uint8Array.from(struct([[1, I32, 0], [2, I32, data.length], [3, I32, data.length], [5, STRUCT, [[1, I32, rows], [2, I32, 0], [3, I32, 3], [4, I32, 3]]]]));
    const [offset, length] = [size, header.length + data.length];
    parts.push(header, data);
    size += length;
    const about = [[1, I32, type], [2, LIST, [I32, [0]]], [3, LIST, [BINARY, [name]]], [4, I32, 0], [5, I64, rows], [6, I64, length], [7, I64, length], [9, I64, offset]];
    return { length, fields: [[2, I64, offset], [3, STRUCT, about]] };
  });
  const schema = [[[4, BINARY, "schema"], [5, I32, columns.length]], ...columns.map(([name, kind]) => [[1, I32, KINDS[kind].type], [3, I32, 0], [4, BINARY, name], ...(kind === "text" ? [[6, I32, 0]] : [])])];
  const group = [[1, LIST, [STRUCT, chunks.map(({ fields }) => fields)]], [2, I64, chunks.reduce((sum, { length }) => sum + length, 0)], [3, I64, rows]];
  const footer = Uint8Array.from(struct([[1, I32, 1], [2, LIST, [STRUCT, schema]], [3, I64, rows], [4, LIST, [STRUCT, [group]]], [6, BINARY, "ammeter"]]));
  return new Blob([...parts, footer, new Uint8Array(Uint32Array.of(footer.length).buffer), MAGIC]);
}

function lengthAndText(text) {
  const bytes = TEXT.encode(text);
  return [new Uint8Array(Uint32Array.of(bytes.length).buffer), bytes];
}

function joined(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

// Thrift's compact protocol. fields: [id, type, value], with ascending ids.
function struct(fields) {
  let before = 0;
  const bytes = fields.flatMap(([id, type, value]) => {
    const head = ((id - before) << 4) | type;
    before = id;
    return [head, ...encoded(type, value)];
  });
  return [...bytes, 0];
}

function encoded(type, value) {
  if (type === STRUCT) return struct(value);
  if (type === LIST) {
    const [of, items] = value;
    return [...(items.length < 15 ? [(items.length << 4) | of] : [0xf0 | of, ...unsigned(items.length)]), ...items.flatMap((item) => encoded(of, item))];
  }
  if (type === BINARY) {
    const bytes = TEXT.encode(value);
    return [...unsigned(bytes.length), ...bytes];
  }
  return unsigned(2 * value); // zigzag of a number that is not negative
}

function unsigned(value) {
  const bytes = [];
  while (value >= 128) {
    bytes.push((value % 128) | 128);
    value = Math.floor(value / 128);
  }
  return [...bytes, value];
}
