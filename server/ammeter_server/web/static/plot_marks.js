// Marks over a chart of steps.

// Skipped steps at the bottom, non-finite points at the top, attempts as dashed lines with their names below the top,
// incidents as lines with their names above the plot.
export function drawMarks(plot, { skipped, nonfinite, incidents, boundaries }, ink) {
  const { ctx } = plot;
  const { left, top, width, height } = plot.bbox;
  const dot = devicePixelRatio;
  const shown = (step) => step >= plot.scales.x.min && step <= plot.scales.x.max;
  const at = (step) => Math.round(plot.valToPos(step, "x", true));
  ctx.save();
  ctx.fillStyle = ink.ticket;
  for (const step of skipped.filter(shown)) ctx.fillRect(at(step) - dot / 2, top + height - 9 * dot, 1.5 * dot, 9 * dot);
  ctx.fillStyle = ink.page;
  for (const step of nonfinite.filter(shown)) triangle(ctx, at(step), top + dot, 4 * dot);
  ctx.font = `${11 * dot}px system-ui, sans-serif`;
  for (const { step, words } of boundaries.filter((boundary) => shown(boundary.step))) {
    ctx.strokeStyle = ctx.fillStyle = ink.quiet;
    ctx.lineWidth = dot;
    ctx.setLineDash([3 * dot, 3 * dot]);
    ctx.beginPath();
    ctx.moveTo(at(step), top);
    ctx.lineTo(at(step), top + height);
    ctx.stroke();
    ctx.setLineDash([]);
    label(ctx, words, at(step), top + 11 * dot, [left, left + width], dot);
  }
  let free = [left, left + width];
  for (const { step, severity, title } of incidents.filter((incident) => shown(incident.step)).sort(bySeverity)) {
    ctx.fillStyle = ink[severity];
    ctx.fillRect(at(step) - dot / 2, top - 4 * dot, dot, height + 4 * dot);
    free = label(ctx, title, at(step), top - 6 * dot, free, dot);
  }
  ctx.restore();
}

function bySeverity(a, b) {
  return (a.severity > b.severity) - (a.severity < b.severity) || a.step - b.step;
}

// Writes the text beside x, cut to the available width, and returns the remaining width.
function label(ctx, text, x, y, [from, to], dot) {
  if (x < from || x > to) return [from, to];
  const toTheRight = to - x > x - from;
  const words = cut(ctx, text, (toTheRight ? to - x : x - from) - 6 * dot);
  if (!words) return [from, to];
  ctx.textAlign = toTheRight ? "left" : "right";
  ctx.textBaseline = "alphabetic";
  ctx.fillText(words, x, y);
  const used = ctx.measureText(words).width + 10 * dot;
  return toTheRight ? [x + used, to] : [from, x - used];
}

function cut(ctx, text, room) {
  for (let length = text.length; length > 6; length--) {
    const words = length === text.length ? text : text.slice(0, length).trimEnd() + "…";
    if (ctx.measureText(words).width <= room) return words;
  }
  return "";
}

function triangle(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x, y + 1.6 * size);
  ctx.fill();
}
