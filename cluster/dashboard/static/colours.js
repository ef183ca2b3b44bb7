// Colours: of requests, and of what the style sheet names. A request keeps its colour for life.

export function hueOf(requestId) {
  let hash = 2166136261;
  for (let i = 0; i < requestId.length; i++) hash = Math.imul(hash ^ requestId.charCodeAt(i), 16777619);
  // Steps of the golden angle keep hues of neighbours apart.
  return ((hash >>> 0) * 137.508) % 360;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

export function requestColour(requestId, strength = 1) {
  const lightness = dark.matches ? 62 : 46;
  return `hsl(${hueOf(requestId)} 68% ${lightness}% / ${strength})`;
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
