// Colours: of requests, and of what the style sheet names. A request keeps its colour for life; it is
// known by its mark, for not everybody may know its name.

const MOST_REMEMBERED = 4096;
const places = new Map();
let seen = 0;

// Requests get colours in the order in which they are first seen: those who are served together
// have come one after the other, and steps of the golden angle keep their hues apart.
function placeOf(mark) {
  let place = places.get(mark);
  if (place === undefined) {
    place = seen++;
    places.set(mark, place);
    if (places.size > MOST_REMEMBERED) places.delete(places.keys().next().value);
  }
  return place;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

function hueAndShade(mark) {
  const place = placeOf(mark);
  return [(place * 137.508) % 360, 9 * ((place % 3) - 1)];
}

// For canvases, which are drawn anew when the theme changes.
let lightness = parseFloat(named("own-lightness"));
dark.addEventListener("change", () => { lightness = parseFloat(named("own-lightness")); });

export function requestColour(mark, strength = 1) {
  const [hue, shade] = hueAndShade(mark);
  return `hsl(${hue} 68% ${lightness + shade}% / ${strength})`;
}

// For elements, which follow the theme by themselves.
export function paint(element, mark) {
  const [hue, shade] = hueAndShade(mark);
  element.style.background = `hsl(${hue} 68% calc(var(--own-lightness) + ${shade}%))`;
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
