// Rows of a map of layers: tensors in the order of the matrix, those of one block under one row at the place of the first
// of them. It shows the worst of them.

const MIN_FOLDED = 40;

// The part of a tensor's name that blocks share: up to the first number, such as layers.3.
export function blockOf(name) {
  const parts = name.split(".");
  const number = parts.findIndex((part) => /^\d+$/.test(part));
  return number >= 0 ? parts.slice(0, number + 1).join(".") : parts[0];
}

// Rows of a matrix. isOpen(block): whether its tensors have rows of their own. lowest: the lowest value is the worst one.
export function layersOf(matrix, isOpen, lowest) {
  const byName = new Map();
  matrix.items.forEach(({ name: own }, index) => {
    const name = blockOf(own);
    if (byName.has(name)) byName.get(name).members.push(index);
    else byName.set(name, { name, members: [index] });
  });
  const blocks = [...byName.values()];
  const rows = blocks.flatMap(({ name, members }) => {
    if (members.length < 2) return members.map((index) => ({ name: matrix.items[index].name, index }));
    const block = { name, members, isOpen: isOpen(name) };
    return block.isOpen ? [block, ...members.map((index) => ({ name: matrix.items[index].name, index, block: name }))] : [block];
  });
  const rowOf = new Int32Array(matrix.items.length);
  rows.forEach(({ index, members, isOpen: open }, row) => {
    if (index !== undefined) rowOf[index] = row;
    else if (!open) members.forEach((member) => (rowOf[member] = row));
  });
  const worst = new Map();
  const memberAt = (row, column) => {
    const { index, members } = rows[row];
    if (index !== undefined) return index;
    if (!worst.has(row)) worst.set(row, worstOf(matrix, members, lowest));
    return worst.get(row)[column];
  };
  return {
    rows, rowOf, memberAt, blocks: blocks.filter(({ members }) => members.length > 1),
    at: (row, column) => matrix.at(memberAt(row, column), column),
    stepAt: (row, column) => matrix.stepAt(memberAt(row, column), column),
  };
}

// Blocks are closed at first in a model that would fill more than a window.
export function isFoldedAtFirst({ items }) {
  return items.length > MIN_FOLDED;
}

// Of all tensors in one column: the index of the worst, null if none was measured, and how many are not finite.
export function worstIn({ items, at }, column, lowest) {
  let [index, worst, broken] = [null, -Infinity, 0];
  items.forEach((_, row) => {
    const value = at(row, column);
    if (value === null) return;
    if (!Number.isFinite(value)) broken++;
    if (badness(value, lowest) > worst || index === null) [index, worst] = [row, badness(value, lowest)];
  });
  return { index, broken };
}

function badness(value, lowest) {
  return Number.isFinite(value) ? (lowest ? -value : value) : Infinity;
}

// For each column, the member with the worst value: not finite, then highest or lowest, then not measured.
function worstOf({ at, columns }, members, lowest) {
  const chosen = new Int32Array(columns);
  for (let column = 0; column < columns; column++) {
    let [member, worst] = [members[0], -Infinity];
    for (const index of members) {
      const value = at(index, column);
      if (value === null) continue;
      if (badness(value, lowest) > worst) [member, worst] = [index, badness(value, lowest)];
    }
    chosen[column] = member;
  }
  return chosen;
}
