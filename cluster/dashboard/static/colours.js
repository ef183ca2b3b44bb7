// Colours: of requests, and of what the style sheet names. A request keeps its colour for life.

const MOST_REMEMBERED = 4096;
const places = new Map();
let seen = 0;

// Requests get colours in the order in which they are first seen: those who are served together
// have come one after the other, and steps of the golden angle keep their hues apart.
function placeOf(requestId) {
  let place = places.get(requestId);
  if (place === undefined) {
    place = seen++;
    places.set(requestId, place);
    if (places.size > MOST_REMEMBERED) places.delete(places.keys().next().value);
  }
  return place;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

export function requestColour(requestId, strength = 1) {
  const place = placeOf(requestId);
  const lightness = (dark.matches ? 62 : 46) + 9 * ((place % 3) - 1);
  return `hsl(${(place * 137.508) % 360} 68% ${lightness}% / ${strength})`;
}

export function named(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function onThemeChange(redraw) {
  dark.addEventListener("change", redraw);
}

// A canvas as sharp as the screen; returns its context, in CSS pixels.
export function sharpen(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}
