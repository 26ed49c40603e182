// Subscriptions, Spark, settings.

import { get, live } from './api.js';
import { bytes, duration, h, moment, ms, number, problem, redraw, show, state, table } from './dom.js';
import { link } from './tables.js';

const page = (kind, title, path, draw) => (content) =>
  live(kind, async (byItself, ended) => {
    try {
      const data = await get(path, byItself);
      if (!ended()) redraw(content, h('h1', {}, title), draw(data));
    } catch (failure) {
      if (!ended()) show(content, h('h1', {}, title), problem(failure.error));
    }
  }).stop;

export const subscriptionsPage = page('subscriptions', 'Subscriptions', 'subscriptions', (data) => [
  table(
    'Subscriptions',
    [
      ['Reads', (row) => row.reads, 'text'],
      ['Subscriber', (row) => row.subscriber],
      ['Since', (row) => moment(row.started_at)],
      ['Clients', (row) => number(row.clients), 'number'],
      ['Waits for clients', (row) => bytes(row.waiting_bytes), 'number'],
      ['Lag', (row) => duration(row.lag), 'number'],
    ],
    data.subscriptions,
    'Nobody subscribes whose subscriptions you may see.',
  ),
  h('h2', {}, 'Retained histories'),
  data.histories.length
    ? table(
        'Retained histories',
        Object.keys(data.histories[0]).map((name) => [
          name.replaceAll('_', ' '),
          (row) =>
            typeof row[name] === 'object' && row[name] !== null ? JSON.stringify(row[name]) : String(row[name] ?? '–'),
          'text',
        ]),
        data.histories,
      )
    : h('p', { class: 'quiet' }, 'None.'),
]);

export const sparkPage = page('spark', 'Spark and refreshes', 'spark', (data) => [
  h('h2', {}, 'Under way'),
  table(
    'Under way',
    [
      ['Stream table', link],
      ['Action', (row) => row.action || '–'],
      ['Phase', (row) => row.phase],
      ['First', (row) => (row.initial ? 'yes' : 'no')],
      ['For', (row) => duration(row.seconds), 'number'],
      ['Rows to read', (row) => number(row.source_rows), 'number'],
      ['Rows stored', (row) => number(row.rows_copied), 'number'],
    ],
    data.under_way,
    'No refresh is under way.',
  ),
  h('h2', {}, 'Computed by Spark'),
  table(
    'Computed by Spark',
    [
      ['Stream table', link],
      ['Began', (row) => moment(row.began)],
      ['Action', (row) => row.action],
      ['Status', (row) => state(row.status)],
      ['Executor', (row) => row.executor],
      ['Took', (row) => ms(row.ms), 'number'],
      ['Changes', (row) => number(row.changes), 'number'],
      ['Why', (row) => row.executor_reason || '', 'text'],
      ['Error', (row) => row.error || '', 'text'],
    ],
    data.on_spark,
    'No refresh that you may see was computed by Spark.',
  ),
  h('h2', {}, 'Who computes what'),
  table(
    'Who computes what',
    [
      ['Stream table', link],
      ['Engine', (row) => row.engine],
      ['Last executor', (row) => row.executor],
      ['Why', (row) => row.why || '', 'text'],
    ],
    data.choices,
  ),
]);

export const settingsPage = page('settings', 'Settings', 'settings', (data) => [
  h('p', { class: 'quiet' }, 'As they are in force in this database. ALTER DATABASE … SET changes them.'),
  table(
    'Settings',
    [
      ['Name', (row) => row.name, 'data'],
      [
        'Value',
        (row) => [row.setting, row.unit && ` ${row.unit}`, row.error && h('div', { class: 'error' }, row.error)],
        'data',
      ],
      ['Default', (row) => row.default, 'data'],
      ['From', (row) => row.source],
      ['What it does', (row) => row.description, 'text'],
    ],
    data.settings,
  ),
]);
