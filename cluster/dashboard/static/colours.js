// Colours: of requests, and of what the style sheet names. A request keeps its colour for life; it is
// known by its mark, for not everybody may know its name.

const MOST_REMEMBERED = 4096;
const places = new Map();
let seen = 0;

// Requests get colours in the order in which they are first seen: those who are served together
// have come one after the other, and neighbours in the style sheet's list are easily told apart.
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

const list = [];
while (named(`own-${list.length}`)) list.push(`own-${list.length}`);

function nameOf(mark) {
  return list[placeOf(mark) % list.length];
}

// For canvases, which are drawn anew when the theme changes.
const own = () => Object.fromEntries(list.map((name) => [name, named(name)]));
let colours = own();
dark.addEventListener("change", () => { colours = own(); });

export function requestColour(mark, strength = 1) {
  return colours[nameOf(mark)] + Math.round(255 * strength).toString(16).padStart(2, "0");
}

// For elements, which follow the theme by themselves.
export function paint(element, mark) {
  element.style.background = `var(--${nameOf(mark)})`;
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
