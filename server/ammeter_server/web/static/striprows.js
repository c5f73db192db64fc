// Draws rows of small charts over steps on a canvas. Nothing is drawn between steps of which the second was not read.

import { drawSteps } from "./paint.js";

export const ROW_HEIGHT = 38;
const ROOM = 5;
const LABEL_SIDE = 12;
const MANY_POINTS = 150;

export function paintRows(pen, box, picture, ink) {
  pen.setTransform(box.dot, 0, 0, box.dot, 0, 0);
  pen.clearRect(0, 0, box.width, box.height + 40);
  picture.rows.forEach((row, index) => {
    const top = index * ROW_HEIGHT;
    pen.fillStyle = ink.line;
    pen.fillRect(0, top + ROW_HEIGHT - 1, box.width, 1);
    pen.save();
    pen.beginPath();
    pen.rect(0, top, box.width, ROW_HEIGHT - 1);
    pen.clip();
    KINDS[row.kind](pen, { ...box, y: (value) => top + ROW_HEIGHT - 1 - ROOM - row.place(value) * (ROW_HEIGHT - 1 - 2 * ROOM), top, bottom: top + ROW_HEIGHT - 1 }, row, ink);
    pen.restore();
  });
  drawMarks(pen, box, picture, ink);
  drawSteps(pen, { ...box, left: LABEL_SIDE, width: box.width - 2 * LABEL_SIDE + 10, first: picture.first, last: picture.last + 1e-9 }, ink);
}

// The chosen row, the steps that are being selected, and the cursor with the readings next to it.
export function paintCursor(pen, box, picture, { step, near, dragged, row: chosen }, ink) {
  if (chosen >= 0) fill(pen, ink.accent, 0.07, 0, chosen * ROW_HEIGHT, box.width, ROW_HEIGHT);
  if (dragged) fill(pen, ink.accent, 0.2, Math.min(dragged.from, dragged.to), 0, Math.abs(dragged.to - dragged.from), box.height);
  if (step === null) return;
  line(pen, box.x(step), box.height, ink.ink, []);
  near.forEach((reading, index) => {
    const row = picture.rows[index];
    if (!reading || !Number.isFinite(row.place(reading.value)) || row.kind === "ticks" || row.kind === "diamonds") return;
    const y = index * ROW_HEIGHT + ROW_HEIGHT - 1 - ROOM - row.place(reading.value) * (ROW_HEIGHT - 1 - 2 * ROOM);
    disc(pen, box.x(reading.step), y, 3.5, ink.card);
    disc(pen, box.x(reading.step), y, 2.5, ink.ink);
  });
}

const KINDS = {
  line: (pen, box, row, ink) => row.lines.forEach((curve) => drawLine(pen, box, curve, ink, false)),
  steps: (pen, box, row, ink) => row.lines.forEach((curve) => drawLine(pen, box, curve, ink, true)),
  band: (pen, box, row, ink) => row.lines.forEach((curve) => drawBand(pen, box, curve, row, ink)),
  ticks: (pen, box, { lines }, ink) => lines.forEach(({ steps, values }) => steps.forEach((step, index) => {
    if (values[index] > 0) fill(pen, ink.ticket, 1, box.x(step) - 0.75, box.top + 8, 1.5, ROW_HEIGHT - 17);
  })),
  diamonds: (pen, box, { lines }, ink) => lines.forEach(({ steps, values }) => steps.forEach((step, index) =>
    diamond(pen, box.x(step), (box.top + box.bottom) / 2, 5, ink.accent, values[index] === 1))),
};

// Calls draw(from, to) with the indices of each stretch of readings without a gap or a value that has no place.
function stretches({ steps, values, breaks }, box, draw) {
  const ends = new Set(breaks.map(([before]) => before));
  let from = -1;
  for (let index = 0; index < steps.length; index++) {
    if (!Number.isFinite(box.y(values[index]))) {
      if (from >= 0) draw(from, index);
      from = -1;
      continue;
    }
    if (from < 0) from = index;
    if (ends.has(steps[index])) {
      draw(from, index + 1);
      from = -1;
    }
  }
  if (from >= 0) draw(from, steps.length);
}

function drawLine(pen, box, curve, ink, isStepped) {
  const { steps, values, tone = 0, replaced } = curve;
  pen.strokeStyle = pen.fillStyle = replaced ? ink.quiet : ink.tones[tone % ink.tones.length];
  pen.lineWidth = steps.length > 500 ? 1 : 1.5;
  pen.setLineDash(tone % 2 ? [4, 2] : []);
  pen.lineJoin = "round";
  stretches(curve, box, (from, to) => {
    if (to - from === 1) return tone % 2 ? pen.fillRect(box.x(steps[from]) - 2, box.y(values[from]) - 0.5, 4, 1) : disc(pen, box.x(steps[from]), box.y(values[from]), steps.length > MANY_POINTS ? 1.3 : 2, pen.fillStyle);
    pen.beginPath();
    for (let index = from; index < to; index++) {
      const [x, y] = [box.x(steps[index]), box.y(values[index])];
      if (index === from) pen.moveTo(x, y);
      else {
        if (isStepped) pen.lineTo(x, box.y(values[index - 1]));
        pen.lineTo(x, y);
      }
    }
    pen.stroke();
  });
  pen.setLineDash([]);
  steps.forEach((step, index) => Number.isFinite(values[index]) || triangle(pen, box.x(step), box.top + 2, 3.5, ink.page));
}

// From each reading to the limit, so that the room that is left can be seen; without room in another colour and wider.
function drawBand(pen, box, { steps, values, breaks }, { limit, least }, ink) {
  stretches({ steps, values, breaks }, box, (from, to) => {
    for (let index = from; index < to; index++) {
      const isConnected = index + 1 < to;
      const width = Math.max(1.5, isConnected ? box.x(steps[index + 1]) - box.x(steps[index]) : 1.5);
      const [y, end] = [box.y(values[index]), box.y(limit)];
      const isTight = values[index] < least;
      fill(pen, isTight ? ink.page : ink.accent, isTight ? 1 : 0.28, box.x(steps[index]), Math.min(y, end), width, Math.max(1.5, Math.abs(y - end)));
      fill(pen, isTight ? ink.page : ink.accent, 1, box.x(steps[index]), y - 0.75, width, 1.5);
    }
  });
}

// The first steps of incidents: a solid line for urgent ones, a dashed one for others; of attempts, dotted.
function drawMarks(pen, box, { incidents, boundaries, first, last }, ink) {
  const isShown = ({ step }) => step >= first && step <= last;
  for (const { step } of boundaries.filter(isShown)) line(pen, box.x(step), box.height, ink.quiet, [1, 3]);
  for (const { step, severity } of incidents.filter(isShown)) line(pen, box.x(step), box.height, ink[severity], severity === "page" ? [] : [5, 3]);
}

function line(pen, x, height, colour, dash) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(Math.round(x) + 0.5, 0);
  pen.lineTo(Math.round(x) + 0.5, height);
  pen.stroke();
  pen.setLineDash([]);
}

function fill(pen, colour, alpha, ...area) {
  pen.globalAlpha = alpha;
  pen.fillStyle = colour;
  pen.fillRect(...area);
  pen.globalAlpha = 1;
}

function disc(pen, x, y, radius, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}

function triangle(pen, x, y, size, colour) {
  shape(pen, colour, [[x - size, y], [x + size, y], [x, y + 1.6 * size]]);
  pen.fill();
}

function diamond(pen, x, y, size, colour, isFilled) {
  shape(pen, colour, [[x, y - size], [x + size, y], [x, y + size], [x - size, y]]);
  if (isFilled) pen.fill();
  else pen.stroke();
}

function shape(pen, colour, corners) {
  pen.fillStyle = pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.beginPath();
  corners.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
}
