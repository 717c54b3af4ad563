// Perceptually even colours, computed in OKLab: equal steps of score are equal steps of lightness, for every eye.

function channel(linear) {
  const value = Math.min(1, Math.max(0, linear));
  return Math.round(255 * (value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055));
}

export function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180), b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    channel(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

// Light page: pale to deep. Dark page: deep to pale. More attention is always further from the paper.
function ramp(dark) {
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const t = i / 255;
    const lightness = dark ? 0.2 + 0.72 * t : 0.975 - 0.7 * t;
    const hue = dark ? 285 - 195 * t ** 1.15 : 105 + 175 * t ** 0.75;
    const chroma = dark
      ? 0.035 + 0.13 * Math.sin(Math.PI * Math.min(1, 0.12 + 0.7 * t))
      : 0.02 + 0.125 * Math.sin(Math.PI * 0.62 * t);
    table.set(oklch(lightness, chroma, hue), 3 * i);
  }
  return table;
}

const ramps = { light: ramp(false), dark: ramp(true) };

export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

export function table() {
  return isDark() ? ramps.dark : ramps.light;
}

// Scores are heavy-tailed: shade goes with their power 0.6, and the legend says so. The table spares a power a cell.
const POWER = Uint8Array.from({ length: 4097 }, (_, i) => Math.round(255 * (i / 4096) ** 0.6));
export function shade(value, top) {
  return top > 0 && value > 0 ? POWER[Math.min(4096, Math.round((4096 * value) / top))] : 0;
}

export function css(index) {
  const colours = table();
  return `rgb(${colours[3 * index]} ${colours[3 * index + 1]} ${colours[3 * index + 2]})`;
}

function luminance(red, green, blue) {
  const parts = [red, green, blue].map((
    c,
  ) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}

// Ink that can be read on a shade: black or white, of which one always has a contrast of at least 4.58.
const inks = {};
export function ink(index) {
  const theme = isDark() ? "dark" : "light";
  inks[theme] ??= Array.from({ length: 256 }, (_, i) => {
    const background = luminance(...ramps[theme].subarray(3 * i, 3 * i + 3));
    return (background + 0.05) / 0.05 > 1.05 / (background + 0.05) ? "#000000" : "#ffffff";
  });
  return inks[theme][index];
}

export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: read("ink"),
    muted: read("muted"),
    line: read("line"),
    paper: read("panel"),
    sink: read("sink"),
    path: read("path"),
    series: [1, 2, 3, 4, 5, 6].map((i) => read(`series-${i}`)),
  };
}

// A second sign beside colour for every series.
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 2", "1 4"];
const MARKERS = ["circle", "square", "diamond", "triangle", "cross", "ring"];

// Colour, mark and dash of the n-th series; no two of 36 share colour and dash, nor colour and mark.
export function seriesLook(place) {
  const turn = (place + Math.floor(place / 6)) % 6;
  return { colour: palette().series[place % 6], marker: MARKERS[turn], dash: DASHES[turn] };
}
