// The visible range of times and devices, and its control by pointer and keys.

const MARGIN = { left: 84, right: 14 };  // the same for every chart over time, so that their times are aligned
const MIN_DEVICES = 2;

class View {
  constructor(end, devices, onChange) {
    Object.assign(this, { end, devices, onChange });
    this.all = { t0: 0, t1: end, d0: 0, d1: devices };
    this.shortest = Math.min(1, end);
    Object.assign(this, this.all);
  }

  // Shows a range, clipped to the data.
  show({ t0 = this.t0, t1 = this.t1, d0 = this.d0, d1 = this.d1 }) {
    const time = Math.min(Math.max(t1 - t0, this.shortest), this.end);
    const count = Math.min(Math.max(d1 - d0, Math.min(MIN_DEVICES, this.devices)), this.devices);
    this.t0 = Math.min(Math.max(t0 + (t1 - t0 - time) / 2, 0), this.end - time);
    this.d0 = Math.min(Math.max(d0 + (d1 - d0 - count) / 2, 0), this.devices - count);
    this.t1 = this.t0 + time;
    this.d1 = this.d0 + count;
    this.onChange();
  }

  // `part`: position of the fixed point in the range, from 0 to 1.
  zoomTime(factor, part = 0.5) {
    const length = Math.min(Math.max((this.t1 - this.t0) * factor, this.shortest), this.end);
    const fixed = this.t0 + (this.t1 - this.t0) * part;
    this.show({ t0: fixed - length * part, t1: fixed + length * (1 - part) });
  }

  zoomDevices(factor, part = 0.5) {
    const minimum = Math.min(MIN_DEVICES, this.devices);
    const count = Math.min(Math.max((this.d1 - this.d0) * factor, minimum), this.devices);
    const fixed = this.d0 + (this.d1 - this.d0) * part;
    this.show({ d0: fixed - count * part, d1: fixed + count * (1 - part) });
  }

  pan(time, devices) {
    this.show({ t0: this.t0 + time, t1: this.t1 + time, d0: this.d0 + devices, d1: this.d1 + devices });
  }
}

const KEYS = {
  ArrowLeft: (v) => v.pan(-(v.t1 - v.t0) / 8, 0),
  ArrowRight: (v) => v.pan((v.t1 - v.t0) / 8, 0),
  ArrowUp: (v) => v.pan(0, -(v.d1 - v.d0) / 8),
  ArrowDown: (v) => v.pan(0, (v.d1 - v.d0) / 8),
  "+": (v) => v.zoomTime(1 / 1.6),
  "=": (v) => v.zoomTime(1 / 1.6),
  "-": (v) => v.zoomTime(1.6),
  "]": (v) => v.zoomDevices(1 / 1.6),
  "[": (v) => v.zoomDevices(1.6),
  0: (v) => v.show(v.all),
  Home: (v) => v.show(v.all),
};

// Lets a focusable canvas control the view. Without focus or Ctrl, the wheel scrolls the page.
function navigate(canvas, view, { withDevices, onIgnoredWheel = () => {} }) {
  const inside = () => canvas.clientWidth - MARGIN.left - MARGIN.right;
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return onIgnoredWheel();
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 30 : 1;  // lines, or pixels
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey;
    if (sideways) return view.pan((event.deltaX * unit / inside()) * (view.t1 - view.t0), 0);
    const delta = (event.deltaY || event.deltaX) * unit;
    const factor = Math.exp(Math.min(Math.max(delta, -300), 300) * 0.0025);
    if (event.shiftKey && withDevices) return view.zoomDevices(factor, event.offsetY / canvas.clientHeight);
    const part = (event.offsetX - MARGIN.left) / inside();
    view.zoomTime(factor, Math.min(Math.max(part, 0), 1));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const move = KEYS[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(view);
  });
  canvas.addEventListener("dblclick", (event) => {
    view.zoomTime(1 / 4, Math.min(Math.max((event.offsetX - MARGIN.left) / inside(), 0), 1));
  });
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    last = event;
    canvas.setPointerCapture(event.pointerId);
    canvas.parentElement.classList.add("moving");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const time = ((last.clientX - event.clientX) / inside()) * (view.t1 - view.t0);
    const devices = ((last.clientY - event.clientY) / canvas.clientHeight) * (view.d1 - view.d0);
    last = event;
    view.pan(time, withDevices ? devices : 0);
  });
  const stop = () => {
    last = null;
    canvas.parentElement.classList.remove("moving");
  };
  canvas.addEventListener("pointerup", stop);
  canvas.addEventListener("pointercancel", stop);
}

// Fits the pixels of a canvas to its size on the screen; returns a context in CSS pixels.
function fitCanvas(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

function timeAxis(context, theme, view, width, top, bottom) {
  const inside = width - MARGIN.left - MARGIN.right;
  const [ticks, step] = timeTicks(view.t0, view.t1, Math.max(2, Math.floor(inside / 105)));
  context.font = FONT;
  context.textAlign = "center";
  context.textBaseline = "top";
  context.lineWidth = 1;
  for (const tick of ticks) {
    const x = Math.round(MARGIN.left + ((tick - view.t0) / (view.t1 - view.t0)) * inside) + 0.5;
    context.strokeStyle = theme.line;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, bottom + 4);
    context.stroke();
    context.fillStyle = theme.muted;
    const text = formatTime(tick, step);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(x, width - half - 1), bottom + 7);
  }
}

const FONT = '11.5px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

// Returns a function that draws in the next frame, once for all calls before it.
function onNextFrame(draw) {
  let isScheduled = false;
  return () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      draw();
    });
  };
}
