// Charts as SVG. Each has a table beside it, or says in its label what it shows.

import { duration, h, number, s } from './dom.js';

const HEIGHT = 210,
  LEFT = 70,
  RIGHT = 16,
  TOP = 14,
  BOTTOM = 30;
let WIDTH = 900; // that of the page, so that a narrow one has no small letters

function measure() {
  WIDTH = Math.max(300, Math.min(1200, document.getElementById('content').clientWidth - 24));
}

const hour = (text) => new Date(text).toLocaleString('sv-SE', { dateStyle: 'short', timeStyle: 'medium' });

function frame(label, low, high, text, first, last, children) {
  const ys = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
  const lines = [low, (low + high) / 2, high].map((value) => [
    s('line', { class: 'axis', x1: LEFT, x2: WIDTH - RIGHT, y1: ys(value), y2: ys(value) }),
    s('text', { x: LEFT - 6, y: ys(value) + 4, 'text-anchor': 'end' }, text(value)),
  ]);
  return s(
    'svg',
    { class: 'chart', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': label },
    lines,
    children(ys),
    s('text', { x: LEFT, y: HEIGHT - 8 }, first),
    s('text', { x: WIDTH - RIGHT, y: HEIGHT - 8, 'text-anchor': 'end' }, last),
  );
}

// A bar for each refresh, the oldest first.
export function timeline(history) {
  measure();
  const refreshes = history.filter((each) => each.ms !== null).reverse();
  if (!refreshes.length) return h('p', { class: 'quiet' }, 'It has not been refreshed yet.');
  const high = Math.max(...refreshes.map((each) => each.ms), 0.001);
  const step = Math.min(26, (WIDTH - LEFT - RIGHT) / refreshes.length);
  const kind = (each) =>
    each.status === 'FAILED' ? 'failed' : each.action === 'DIFFERENTIAL' || each.action === 'NO_DATA' ? '' : 'full';
  const chart = frame(
    `Duration of the last ${refreshes.length} refreshes, up to ${duration(high / 1000)}`,
    0,
    high,
    (value) => duration(value / 1000),
    hour(refreshes[0].began),
    hour(refreshes[refreshes.length - 1].began),
    (ys) =>
      refreshes.map((each, place) =>
        s(
          'rect',
          {
            class: `bar ${kind(each)}`,
            x: LEFT + place * step + step * 0.1,
            width: step * 0.8,
            y: Math.min(ys(each.ms), ys(0) - 2),
            height: Math.max(2, ys(0) - ys(each.ms)),
          },
          s(
            'title',
            {},
            `${hour(each.began)}\n${each.action}, ${each.status}, ${duration(each.ms / 1000)}\n${number(each.changes)} changes read`,
          ),
        ),
      ),
  );
  const sample = (name, text) =>
    h(
      'li',
      {},
      s(
        'svg',
        { viewBox: '0 0 12 12', class: 'chart-sample' },
        s('g', { class: 'chart' }, s('rect', { class: `bar ${name}`, width: 12, height: 12 })),
      ),
      text,
    );
  return [
    chart,
    h(
      'ul',
      { class: 'legend' },
      sample('', 'differential'),
      sample('full', 'full or reinitialised'),
      sample('failed', 'failed'),
    ),
  ];
}

// Balances of one resource over time: points are [time, number].
export function balances(name, points) {
  measure();
  const values = points.map(([, value]) => value);
  const low = Math.min(0, ...values),
    high = Math.max(0, ...values);
  const xs = (place) => LEFT + (points.length < 2 ? 0 : place / (points.length - 1)) * (WIDTH - LEFT - RIGHT);
  return frame(
    `${name} over time: from ${number(values[0])} to ${number(values[values.length - 1])}`,
    low,
    high,
    (value) => number(Math.round(value * 100) / 100),
    points[0][0],
    points[points.length - 1][0],
    (ys) => [
      s('path', {
        class: 'line',
        d: points.map(([, value], place) => `${place ? 'L' : 'M'}${xs(place)} ${ys(value)}`).join(''),
      }),
      points.map(([at, value], place) =>
        s('circle', { class: 'dot', cx: xs(place), cy: ys(value), r: 3 }, s('title', {}, `${at}: ${number(value)}`)),
      ),
    ],
  );
}
