// One step that all pictures over steps point at, and what they do alike: drawing over a kept picture, zooming by keys,
// and following fingers.

import { make } from "./dom.js";

export const isTouched = matchMedia("(pointer: coarse)").matches;

const ZOOM = 0.5;
const TAP_PX = 10;
const MIN_PINCH_PX = 16;

export class Cursor {
  constructor() {
    this.step = this.owner = null;
    this.parts = new Map();
    this.live = make("p", { class: "unseen", role: "status" });
    document.getElementById("main").append(this.live);
    this.observer = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
      const part = this.parts.get(target);
      if (!part) return;
      part.isVisible = isIntersecting;
      if (isIntersecting) part.show();
    }));
  }

  // show() draws the cursor in an element that gets the focus: at most once a frame, and only while it is in the window.
  join(element, show) {
    this.parts.set(element, { show, isVisible: false });
    this.observer.observe(element);
    element.addEventListener("pointerleave", (event) => this.handleLeave(element, event));
    element.addEventListener("blur", ({ relatedTarget }) => !this.parts.has(relatedTarget) && this.move(null));
    element.addEventListener("keydown", ({ key }) => key === "Escape" && this.move(null));
  }

  handleLeave(element, { pointerType }) {
    if (pointerType !== "touch" && this.owner === element) this.move(null);
  }

  leave(element) {
    this.observer.unobserve(element);
    this.parts.delete(element);
  }

  // owner: the element in which somebody points at the step.
  move(step, owner = null) {
    if (step === this.step && owner === this.owner) return;
    [this.step, this.owner] = [step, owner];
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      for (const { show, isVisible } of this.parts.values()) if (isVisible) show();
    });
  }

  // For a screen reader, after a key.
  announce(text) {
    this.live.textContent = text;
  }

  // Zooms the shown steps around the cursor, or their middle.
  zoomBy(factor, [first, last], zoom) {
    const middle = this.step >= first && this.step <= last ? (this.step ?? (first + last) / 2) : (first + last) / 2;
    const length = Math.max(2, (last - first) * factor);
    const from = Math.max(0, Math.round(middle - length * ((middle - first) / Math.max(1, last - first))));
    zoom(from, Math.round(from + length));
  }

  // For who has one finger, or wants to press something. shown(): the first and last step that are shown.
  zoomButtons(shown, zoom) {
    return make("div", { class: "fingers" }, [["−", "Zoom out", 1 / ZOOM], ["+", "Zoom in", ZOOM]].map(([sign, words, factor]) =>
      make("button", { "aria-label": words, title: words, onclick: () => this.zoomBy(factor, shown(), zoom) }, sign)));
  }

  // Whether the key zooms: plus and minus, and 0 for all steps. actions: zoom(first, last) and all().
  zoomByKey({ key }, range, { zoom, all }) {
    if (key === "0") all();
    else if (key === "+" || key === "=") this.zoomBy(ZOOM, range, zoom);
    else if (key === "-") this.zoomBy(1 / ZOOM, range, zoom);
    else return false;
    return true;
  }
}

// The steps cut to those from 0 to end, null for all of them.
export function fitted([first, last], end) {
  return first <= 0 && last >= end ? null : [Math.max(0, Math.min(first, end - 1)), Math.max(1, Math.min(last, end))];
}

// Follows fingers on a picture: one moves the cursor, two select steps. Vertical scrolling stays with the browser.
// picture: area(), the left end and the width of the steps in the element; range(), the first and last step that are
// shown; point(x, y); preview(first, last), or preview(null) for the shown steps; zoom(first, last), false if that changes
// nothing; tap(x, y) is optional.
export function followFingers(element, picture) {
  const fingers = new Map();
  let [began, pinch] = [null, null];
  const place = ({ clientX, clientY }) => {
    const { left, top } = element.getBoundingClientRect();
    return [clientX - left, clientY - top];
  };
  const stepAt = (x) => {
    const [{ left, width }, [first, last]] = [picture.area(), picture.range()];
    return first + ((x - left) / width) * (last - first);
  };
  const ends = () => [...fingers.values()].map(([x]) => x).sort((a, b) => a - b);
  const end = ({ pointerId }, isCancelled) => {
    if (!fingers.delete(pointerId) || !pinch) return;
    const { chosen } = pinch;
    pinch = null;
    if (isCancelled || !chosen || picture.zoom(...chosen) === false) picture.preview(null);
  };
  const on = (kind, react) => element.addEventListener(kind, (event) => event.pointerType === "touch" && react(event));
  on("pointerdown", (event) => {
    began = fingers.size ? null : place(event);
    fingers.set(event.pointerId, place(event));
    if (fingers.size === 2) pinch = { steps: ends().map(stepAt), chosen: null };
  });
  on("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    const at = place(event);
    fingers.set(event.pointerId, at);
    if (pinch) {
      const [a, b] = ends();
      const { left, width } = picture.area();
      const perPixel = Math.max(1, pinch.steps[1] - pinch.steps[0]) / Math.max(MIN_PINCH_PX, b - a);
      const first = Math.max(0, Math.round(pinch.steps[0] - (a - left) * perPixel));
      pinch.chosen = [first, Math.max(first + 2, Math.round(first + width * perPixel))];
      picture.preview(...pinch.chosen);
    } else if (began && Math.abs(at[0] - began[0]) >= TAP_PX) picture.point(...at);
  });
  on("pointerup", (event) => {
    const at = place(event);
    const isTap = began && Math.hypot(at[0] - began[0], at[1] - began[1]) < TAP_PX;
    end(event, false);
    if (!isTap) return;
    picture.point(...at);
    picture.tap?.(...at);
  });
  on("pointercancel", (event) => end(event, true));
}

// A canvas over whose picture something is drawn often: the picture itself is drawn anew only after a change.
export class Kept {
  constructor(canvas) {
    this.canvas = canvas;
    this.copy = document.createElement("canvas");
    this.isStale = true;
  }

  // Sizes in pixels of the page. draw(pen) draws the picture. Returns the pen for what is over it.
  pen(width, height, draw) {
    const dot = devicePixelRatio;
    const size = [width, height].map((length) => Math.round(length * dot));
    for (const canvas of [this.canvas, this.copy]) {
      if (canvas.width === size[0] && canvas.height === size[1]) continue;
      [canvas.width, canvas.height] = size;
      this.isStale = true;
    }
    if (this.isStale) draw(this.copy.getContext("2d"));
    this.isStale = false;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, ...size);
    pen.drawImage(this.copy, 0, 0);
    pen.setTransform(dot, 0, 0, dot, 0, 0);
    return pen;
  }
}
