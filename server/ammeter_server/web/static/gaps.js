// Where a line has no measurements.

const GAP_FACTOR = 5;

// Gaps of a line without measurements: [last step before, first step after] of each gap. complete: the points are all
// measurements; in a selection only a distance far above the mean is a gap, because neighbours are selected within four
// times their mean distance. before: the last step of the line that these steps continue.
export function breaksOf(steps, complete = false, before = undefined) {
  const all = before === undefined ? steps : [before, ...steps];
  const mean = (steps.at(-1) - steps[0]) / Math.max(1, steps.length - 1);
  const least = complete ? 1 : Math.max(1, GAP_FACTOR * mean);
  const breaks = [];
  for (let index = 1; index < all.length; index++) {
    if (all[index] - all[index - 1] > (index === 1 && before !== undefined ? 1 : least)) breaks.push([all[index - 1], all[index]]);
  }
  return breaks;
}
