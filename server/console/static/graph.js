// The graph: an SVG that is moved by dragging, scaled by the wheel, two fingers or keys, and searched.

import { get, live } from './api.js';
import { duration, h, number, problem, s, show } from './dom.js';

const WIDE = 205,
  HIGH = 46,
  FAR = 0.5,
  READABLE = 0.6;

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function second(node) {
  if (node.kind === 'stream table') {
    const state = node.status === 'ACTIVE' ? '' : `${node.status} · `;
    return `${state}${node.refresh_mode} · ${node.schedule || 'at once'}`;
  }
  return [node.kind, node.note].filter(Boolean).join(' · ');
}

function target(node) {
  if (node.kind === 'stream table')
    return `#/stream-table/${encodeURIComponent(node.schema)}/${encodeURIComponent(node.name)}`;
  if (node.kind === 'register') return `#/register/${encodeURIComponent(node.name)}`;
  if (node.kind === 'queue') return `#/queue/${encodeURIComponent(node.name)}`;
  if (node.kind === 'consumer') return `#/queue/${encodeURIComponent(node.queue)}`;
  if (node.kind === 'subscription') return '#/subscriptions';
  return null;
}

const health = (node) => (node.status && node.status !== 'ACTIVE' ? 'bad' : node.errors ? 'waits' : '');

// What waits and for how long, as two lines; one where nothing waits.
function lag(edge) {
  const unit = edge.source.startsWith('queue ') ? 'event' : 'row';
  const rows = edge.pending ? `${number(edge.pending)} ${unit}${edge.pending === 1 ? '' : 's'}` : '';
  return [rows, edge.lag === null ? '' : duration(edge.lag)].filter(Boolean);
}

class View {
  constructor() {
    this.x = 0;
    this.y = 0;
    this.scale = 1;
    this.nodes = new Map();
    this.edges = new Map();
    this.data = null;
    this.pointers = new Map();
    this.fitted = false;
    this.under = s('g', {});
    this.over = s('g', {});
    this.world = s('g', {}, this.under, this.over);
    this.svg = s(
      'svg',
      { role: 'group', 'aria-label': 'Graph. Arrow keys move it, plus and minus scale it, 0 shows all.', tabindex: 0 },
      s(
        'defs',
        {},
        s(
          'marker',
          {
            id: 'arrow',
            viewBox: '0 0 8 8',
            refX: 8,
            refY: 4,
            markerWidth: 9,
            markerHeight: 9,
            markerUnits: 'userSpaceOnUse',
            orient: 'auto',
          },
          s('path', { d: 'M0 0 8 4 0 8z' }),
        ),
        s('clipPath', { id: 'card' }, s('rect', { width: WIDE - 4, height: HIGH + 11, y: -11 })),
      ),
      this.world,
    );
    this.svg.addEventListener(
      'wheel',
      (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 500), ...this.at(event));
      },
      { passive: false },
    );
    this.svg.addEventListener('pointerdown', (event) => this.down(event));
    this.svg.addEventListener('pointermove', (event) => this.moved(event));
    for (const name of ['pointerup', 'pointercancel']) this.svg.addEventListener(name, (event) => this.up(event));
    this.svg.addEventListener('keydown', (event) => this.key(event));
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  place() {
    this.world.setAttribute('transform', `translate(${this.x} ${this.y}) scale(${this.scale})`);
    this.svg.classList.toggle('far', this.scale < FAR);
  }

  zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(0.03, this.scale * factor));
    this.x = x - (x - this.x) * (scale / this.scale);
    this.y = y - (y - this.y) * (scale / this.scale);
    this.scale = scale;
    this.place();
  }

  middle(factor) {
    const box = this.svg.getBoundingClientRect();
    this.zoom(factor, box.width / 2, box.height / 2);
  }

  // Show all, but no smaller than can be read where that is asked for.
  fit(least = 0) {
    const box = this.svg.getBoundingClientRect();
    if (!this.data || !this.data.nodes.length || !box.width) return;
    const right = Math.max(...this.data.nodes.map((node) => node.x)) + WIDE;
    const bottom = Math.max(...this.data.nodes.map((node) => node.y)) + HIGH;
    this.scale = Math.max(least, Math.min(1.2, (box.width - 40) / right, (box.height - 70) / bottom));
    this.x = Math.max(12, (box.width - right * this.scale) / 2);
    this.y = Math.max(50, (box.height - bottom * this.scale) / 2);
    this.fitted = true;
    this.place();
  }

  show(node) {
    const box = this.svg.getBoundingClientRect();
    this.scale = Math.max(this.scale, 0.9);
    this.x = box.width / 2 - (node.x + WIDE / 2) * this.scale;
    this.y = box.height / 2 - (node.y + HIGH / 2) * this.scale;
    this.place();
  }

  down(event) {
    this.pointers.set(event.pointerId, this.at(event));
    this.dragged = false;
  }

  moved(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = this.at(event);
    if (this.pointers.size === 1) {
      if (!this.dragged && Math.hypot(now[0] - before[0], now[1] - before[1]) < 4) return;
      if (!this.dragged) {
        this.dragged = true;
        this.svg.setPointerCapture(event.pointerId);
        this.svg.classList.add('moving');
      }
      this.x += now[0] - before[0];
      this.y += now[1] - before[1];
    } else {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      this.dragged = true;
      this.zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    }
    this.pointers.set(event.pointerId, now);
    this.place();
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    this.svg.classList.remove('moving');
  }

  key(event) {
    const step = 60;
    const keys = {
      ArrowLeft: () => {
        this.x += step;
      },
      ArrowRight: () => {
        this.x -= step;
      },
      ArrowUp: () => {
        this.y += step;
      },
      ArrowDown: () => {
        this.y -= step;
      },
      '+': () => this.middle(1.25),
      '=': () => this.middle(1.25),
      '-': () => this.middle(0.8),
      0: () => this.fit(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
    this.place();
  }

  draw(data) {
    this.data = data;
    const byId = new Map(data.nodes.map((node) => [node.id, node]));
    this.patch(
      this.nodes,
      this.over,
      data.nodes,
      (node) => node.id,
      (node) => JSON.stringify([node.x, node.y, node.title, second(node), health(node)]),
      (node) => this.node(node),
    );
    this.patch(
      this.edges,
      this.under,
      data.edges,
      (edge) => `${edge.source}\n${edge.target}`,
      (edge) => {
        const [a, b] = [byId.get(edge.source), byId.get(edge.target)];
        return JSON.stringify([a.x, a.y, b.x, b.y, edge.through, lag(edge)]);
      },
      (edge) => this.edge(edge, byId.get(edge.source), byId.get(edge.target)),
    );
    if (!this.fitted) this.fit(READABLE);
  }

  // Draw anew only what looks otherwise: with a thousand nodes few do.
  patch(known, parent, items, key, look, make) {
    const seen = new Set();
    for (const item of items) {
      const id = key(item),
        now = look(item),
        before = known.get(id);
      seen.add(id);
      if (before && before.look === now) continue;
      const element = make(item);
      if (before) {
        const focused = before.element === document.activeElement;
        before.element.replaceWith(element);
        if (focused) element.focus();
      } else parent.append(element);
      known.set(id, { look: now, element });
    }
    for (const [id, { element }] of known)
      if (!seen.has(id)) {
        element.remove();
        known.delete(id);
      }
  }

  node(node) {
    const href = target(node);
    const open = () => {
      if (href && !this.dragged) location.hash = href;
    };
    return s(
      'g',
      {
        class: `node ${health(node)}`,
        'data-kind': node.kind,
        'data-id': node.id,
        transform: `translate(${node.x} ${node.y})`,
        tabindex: href ? 0 : null,
        role: href ? 'link' : 'img',
        'aria-label': `${node.title}, ${node.kind}, ${second(node)}`,
        onclick: open,
        onkeydown: (event) => {
          if (event.key === 'Enter') open();
        },
        onpointerenter: () => this.light(node.id),
        onpointerleave: () => this.light(null),
        onfocus: () => this.light(node.id),
        onblur: () => this.light(null),
      },
      s('title', {}, `${node.title}\n${second(node)}`),
      s('rect', { width: WIDE, height: HIGH, rx: 7 }),
      s('rect', { class: 'mark', width: 6, height: HIGH, rx: 3 }),
      s('text', { x: 14, y: 20, 'clip-path': 'url(#card)' }, cut(node.title, 24)),
      s('text', { class: 'second', x: 14, y: 37, 'clip-path': 'url(#card)' }, cut(second(node), 31)),
    );
  }

  edge(edge, from, to) {
    const stops = [
      [from.x + WIDE, from.y + HIGH / 2],
      ...edge.through.flatMap(([x, y]) => [
        [x, y + HIGH / 2],
        [x + WIDE, y + HIGH / 2],
      ]),
      [to.x - 2, to.y + HIGH / 2],
    ];
    const curve = ([x1, y1], [x2, y2]) => {
      const bend = x2 > x1 ? (x2 - x1) / 2 : Math.max(40, (x1 - x2) / 2);
      return `C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
    };
    const path = `M${stops[0].join(' ')}${stops
      .slice(1)
      .map((stop, place) => (place % 2 ? `L${stop.join(' ')}` : curve(stops[place], stop)))
      .join('')}`;
    const [[x1, y1], [x2, y2]] = stops.slice(-2);
    const late = edge.pending > 0 || edge.lag > 10;
    return s(
      'g',
      { class: `edge ${late ? 'late' : ''}`, 'data-from': edge.source, 'data-to': edge.target },
      s('path', { d: path, 'marker-end': 'url(#arrow)' }),
      s(
        'text',
        {},
        lag(edge).map((line, place, all) =>
          s('tspan', { x: (x1 + x2) / 2, y: (y1 + y2) / 2 + 4 + 13 * (place - all.length / 2 + 0.5) }, line),
        ),
      ),
    );
  }

  // Dim what does not lie upstream or downstream of a node; of nothing: dim nothing.
  light(id) {
    const near =
      id === null ? null : new Set([...this.along(id, 'source', 'target'), ...this.along(id, 'target', 'source')]);
    for (const [key, { element }] of this.nodes) element.classList.toggle('dim', near !== null && !near.has(key));
    for (const { element } of this.edges.values()) {
      element.classList.toggle(
        'dim',
        near !== null && !(near.has(element.dataset.from) && near.has(element.dataset.to)),
      );
    }
  }

  along(id, from, to) {
    const found = new Set([id]),
      next = [id];
    const by = Map.groupBy ? Map.groupBy(this.data.edges, (edge) => edge[from]) : null;
    while (next.length) {
      const at = next.pop();
      for (const edge of by ? by.get(at) || [] : this.data.edges.filter((each) => each[from] === at)) {
        if (!found.has(edge[to])) {
          found.add(edge[to]);
          next.push(edge[to]);
        }
      }
    }
    return found;
  }

  find(words) {
    const found = this.data
      ? this.data.nodes.filter((node) => words && node.title.toLowerCase().includes(words.toLowerCase()))
      : [];
    const ids = new Set(found.map((node) => node.id));
    for (const [key, { element }] of this.nodes) element.classList.toggle('dim', words !== '' && !ids.has(key));
    for (const { element } of this.edges.values()) element.classList.toggle('dim', words !== '');
    return found;
  }
}

export function graphPage(content) {
  const view = new View();
  const counted = h('span', { class: 'quiet' });
  const search = h('input', {
    type: 'search',
    placeholder: 'Find …',
    'aria-label': 'Find in the graph',
    oninput: () => view.find(search.value),
    onkeydown: next,
  });
  let place = 0;
  function next(event) {
    if (event.key !== 'Enter') {
      place = 0;
      return;
    }
    const found = view.find(search.value);
    if (found.length) view.show(found[place++ % found.length]);
  }
  const button = (text, title, action) =>
    h('button', { type: 'button', title, 'aria-label': title, onclick: action }, text);
  const frame = h(
    'div',
    { class: 'graph' },
    view.svg,
    h(
      'div',
      { class: 'tools' },
      button('+', 'Larger', () => view.middle(1.25)),
      button('−', 'Smaller', () => view.middle(0.8)),
      button('all', 'Show all', () => view.fit()),
    ),
  );
  const said = h('div', {}, h('p', { class: 'quiet' }, 'Loading …'));
  content.className = 'wide';
  show(content, h('div', { class: 'row' }, h('h1', {}, 'Graph'), search, counted), said, frame);
  const resized = new ResizeObserver(() => {
    if (!view.fitted) view.fit(READABLE);
  });
  resized.observe(frame);
  const page = live('graph', async (byItself, ended) => {
    try {
      const data = await get('graph', byItself);
      if (ended()) return;
      view.draw(data);
      counted.textContent = data.nodes.length ? `${number(data.nodes.length)} nodes` : '';
      show(said, data.nodes.length ? null : h('p', {}, 'There is nothing here that you may read.'));
      frame.hidden = !data.nodes.length;
    } catch (failure) {
      if (!ended()) show(said, problem(failure.error));
    }
  });
  return () => {
    page.stop();
    resized.disconnect();
  };
}
