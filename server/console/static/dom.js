// Elements, and values as people read them. Text is always set as text: nothing that comes from a database is read as HTML.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element[name] = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function show(element, ...children) {
  element.replaceChildren(
    ...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false),
  );
}

// The same as show, but what is there already stays, with its focus, and is changed where it differs: a page that is drawn
// again while somebody uses it takes nothing out of their hands. Elements with another data-key are not the same.
export function redraw(element, ...children) {
  const wanted = children.flat(9).filter((child) => child !== null && child !== undefined && child !== false);
  const made = wanted.map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
  morph(element, made);
}

const HANDLERS = ['onclick', 'ontoggle'];

function morph(parent, wanted) {
  wanted.forEach((now, place) => {
    const old = parent.childNodes[place];
    if (!old) parent.append(now);
    else if (old.nodeName !== now.nodeName || (old.dataset && old.dataset.key !== now.dataset.key))
      old.replaceWith(now);
    else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== now.data) old.data = now.data;
    } else become(old, now);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function become(old, now) {
  const kept = old.nodeName === 'DETAILS' ? ['open'] : []; // as its reader has left it
  for (const { name } of [...old.attributes])
    if (!now.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
  for (const { name, value } of now.attributes)
    if (old.getAttribute(name) !== value && !kept.includes(name)) old.setAttribute(name, value);
  for (const name of HANDLERS) if (old[name] || now[name]) old[name] = now[name];
  morph(old, [...now.childNodes]);
}

export function tell(text) {
  const place = document.getElementById('told');
  place.textContent = text;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => {
    place.textContent = '';
  }, 5000);
}

const whole = new Intl.NumberFormat('en');
export const number = (value) => (value === null || value === undefined ? '–' : whole.format(value));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 0.0005) return '0 s';
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const ms = (value) => (value === null || value === undefined ? '–' : duration(value / 1000));

export function bytes(value) {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let place = 0;
  while (value >= 10240 && place < units.length - 1) {
    value /= 1024;
    place += 1;
  }
  return `${Math.round(value)} ${units[place]}`;
}

export function moment(text) {
  if (!text) return '–';
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return text;
  const shown = at.toLocaleString('sv-SE', { dateStyle: 'short', timeStyle: 'medium' });
  return h('time', { datetime: text, title: text }, shown);
}

const GOOD = ['ACTIVE', 'COMPLETED', 'yes'];
const BAD = ['ERROR', 'FAILED', 'SUSPENDED'];
export function state(word) {
  const kind = GOOD.includes(word) ? 'good' : BAD.includes(word) ? 'bad' : 'waits';
  return h('span', { class: `state ${kind}` }, word ?? '–');
}

// Columns are [heading, function of a row, class].
export function table(caption, columns, rows, none = 'None.') {
  if (!rows.length) return h('p', { class: 'quiet' }, none);
  return h(
    'div',
    { class: 'table', tabindex: 0, role: 'region', 'aria-label': caption },
    h(
      'table',
      {},
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          columns.map(([heading, , kind]) =>
            h('th', { scope: 'col', class: kind === 'number' ? 'number' : null }, heading),
          ),
        ),
      ),
      h(
        'tbody',
        {},
        rows.map((row) =>
          h(
            'tr',
            { 'data-key': row.id ?? row.name ?? null },
            columns.map(([, value, kind]) => h('td', { class: kind }, value(row))),
          ),
        ),
      ),
    ),
  );
}

export const facts = (pairs) =>
  h(
    'dl',
    { class: 'facts' },
    pairs.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value ?? '–'))),
  );

export function problem(error, position = null) {
  return h(
    'div',
    { class: 'error', role: 'alert' },
    h('strong', {}, `${error.severity || 'ERROR'}${error.sqlstate ? ` ${error.sqlstate}` : ''}: `),
    error.message,
    error.detail && h('div', {}, 'DETAIL: ', error.detail),
    error.hint && h('div', {}, 'HINT: ', error.hint),
    position && h('div', {}, `at character ${position}`),
  );
}
