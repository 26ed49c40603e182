// Who is logged in, which page is shown, and the head of every page.

import { get, post } from './api.js';
import { h, problem, show } from './dom.js';
import { graphPage } from './graph.js';
import { queuePage, queuesPage } from './queues.js';
import { registerPage, registersPage } from './registers.js';
import { settingsPage, sparkPage, subscriptionsPage } from './other.js';
import { sqlPage } from './sql.js';
import { streamTablePage, streamTablesPage } from './tables.js';

const PAGES = [
  ['graph', 'Graph', graphPage],
  ['stream-tables', 'Stream tables', streamTablesPage],
  ['queues', 'Queues', queuesPage],
  ['registers', 'Registers', registersPage],
  ['subscriptions', 'Subscriptions', subscriptionsPage],
  ['spark', 'Spark', sparkPage],
  ['settings', 'Settings', settingsPage],
  ['sql', 'SQL', sqlPage],
];
const INNER = {
  'stream-table': ['stream-tables', streamTablePage],
  queue: ['queues', queuePage],
  register: ['registers', registerPage],
};

const header = document.getElementById('header');
const content = document.getElementById('content');
let who = null;
let leave = null;

function head(current) {
  show(
    header,
    h('a', { class: 'brand', href: '#/graph' }, 'Headwater'),
    h(
      'nav',
      { 'aria-label': 'Pages' },
      h(
        'ul',
        {},
        PAGES.map(([name, title]) =>
          h('li', {}, h('a', { href: `#/${name}`, 'aria-current': name === current ? 'page' : null }, title)),
        ),
      ),
    ),
    h(
      'div',
      { class: 'who' },
      h('span', {}, `${who.user} on ${who.database}`),
      h('button', { type: 'button', onclick: logOut }, 'Log out'),
    ),
  );
}

async function logOut() {
  await post('logout', {}).catch(() => {});
  loggedOut();
}

function loggedOut() {
  const database = who?.database;
  who = null;
  route(database);
}

function login(database) {
  const said = h('div', {});
  const field = (name, title, type, value, complete) => [
    h('label', { for: name }, title),
    h('input', {
      id: name,
      name,
      type,
      value,
      autocomplete: complete,
      required: name !== 'password',
      spellcheck: 'false',
      autocapitalize: 'none',
    }),
  ];
  const button = h('button', { class: 'main', type: 'submit' }, 'Log in');
  const form = h(
    'form',
    { class: 'login', onsubmit: enter },
    h('h1', {}, 'Headwater'),
    h('p', { class: 'quiet' }, 'The user and password that you have in PostgreSQL.'),
    said,
    field('user', 'User', 'text', '', 'username'),
    field('password', 'Password', 'password', '', 'current-password'),
    field('database', 'Database', 'text', database || '', 'off'),
    button,
  );
  async function enter(event) {
    event.preventDefault();
    button.disabled = true;
    const words = Object.fromEntries(new FormData(form));
    try {
      who = await post('login', words);
      route();
    } catch (failure) {
      show(said, problem(failure.error));
      form.elements.password.value = '';
      form.elements.password.focus();
    } finally {
      button.disabled = false;
    }
  }
  show(header);
  show(content, form);
  document.title = 'Log in – Headwater';
  form.elements.user.focus();
}

function route(database) {
  if (leave) {
    leave();
    leave = null;
  }
  content.className = '';
  content.dataset.page = location.hash;
  if (!who) {
    login(database);
    return;
  }
  const [name, ...words] = location.hash.replace(/^#\//, '').split('/').map(decodeURIComponent);
  const page = PAGES.find(([each]) => each === name) || INNER[name] || PAGES[0];
  head(page[0]);
  show(content, h('p', { class: 'quiet' }, 'Loading …'));
  leave = page[page.length - 1](content, ...words) || null;
  document.title = `${page.length === 3 ? page[1] : words[words.length - 1]} – Headwater`;
}

window.addEventListener('hashchange', () => {
  route();
  content.focus({ preventScroll: true });
  window.scrollTo(0, 0);
});
window.addEventListener('logged-out', () => {
  if (who) loggedOut();
});

get('session')
  .then((session) => {
    if (session.user) who = session;
    route(session.database);
  })
  .catch((failure) => show(content, problem(failure.error)));
