// Registers, and the balances of one over time.

import { follow, get, live, query } from './api.js';
import { balances } from './charts.js';
import { h, moment, number, problem, redraw, show, table } from './dom.js';

const names = (fields) => Object.keys(fields || {}).join(', ');

export function registersPage(content) {
  return live('registers', async (byItself, ended) => {
    try {
      const { registers } = await get('registers', byItself);
      if (ended()) return;
      redraw(
        content,
        h('h1', {}, 'Registers'),
        table(
          'Registers',
          [
            ['Name', (row) => h('a', { href: `#/register/${encodeURIComponent(row.name)}` }, row.name)],
            ['Kind', (row) => row.kind],
            ['Dimensions', (row) => names(row.dimensions), 'text'],
            ['Resources', (row) => names(row.resources), 'text'],
            ['Totals by', (row) => row.totals_period],
            ['Partitions by', (row) => row.partition_by],
            ['High write', (row) => (row.high_write ? 'yes' : 'no')],
            ['Owner', (row) => row.owner],
            ['Created', (row) => moment(row.created_at)],
          ],
          registers,
          'There is no register that you may read.',
        ),
      );
    } catch (failure) {
      if (!ended()) show(content, h('h1', {}, 'Registers'), problem(failure.error));
    }
  }).stop;
}

export function registerPage(content, name) {
  const body = h('div', {}, h('p', { class: 'quiet' }, 'Loading …'));
  let confirmed = false,
    stop = null,
    left = false;
  const period = h(
    'select',
    { id: 'period', onchange: () => draw(false) },
    ['day', 'month', 'quarter', 'year'].map((each) => h('option', { value: each }, each)),
  );
  const dimensions = h('input', {
    id: 'dimensions',
    size: 34,
    placeholder: '{"warehouse": 1}',
    spellcheck: 'false',
    onchange: () => draw(false),
  });
  show(
    content,
    h('h1', {}, name),
    h(
      'div',
      { class: 'row' },
      h('label', { for: 'period' }, 'At the end of each'),
      period,
      h('label', { for: 'dimensions' }, 'where'),
      dimensions,
    ),
    body,
  );
  async function draw(byItself) {
    const words = {
      name,
      period: period.value,
      dimensions: dimensions.value.trim(),
      ...(confirmed ? { confirmed: 1 } : {}),
    };
    try {
      const data = await get(`register?${query(words)}`, byItself);
      if (left) return;
      redraw(
        body,
        data.balances
          ? shown(data)
          : data.kind === 'balance'
            ? asked(data)
            : h('p', {}, 'A register of turnovers has no balance.'),
      );
      if (data.balances && !stop)
        stop = follow(`rows?${query({ schema: 'accum', name: data.movements })}`, { rows: () => draw(true) });
    } catch (failure) {
      if (!left) show(body, problem(failure.error));
    }
  }
  const asked = (data) => [
    h('p', {}, `The functions of this register belong to ${data.owner}, and would run with your rights.`),
    h(
      'button',
      {
        type: 'button',
        onclick: () => {
          confirmed = true;
          draw(false);
        },
      },
      'Show balances all the same',
    ),
  ];
  draw(false);
  return () => {
    left = true;
    if (stop) stop();
  };
}

function shown(data) {
  const resources = Object.keys(data.resources);
  if (!data.balances.length) return h('p', { class: 'quiet' }, 'There are no movements in this time.');
  return [
    resources.map((resource) => [
      h('h2', {}, resource),
      balances(
        resource,
        data.balances.map((row) => [row.at, Number(row.balance[resource])]),
      ),
    ]),
    h('h2', {}, 'Balances'),
    table(
      'Balances',
      [
        ['End of the period from', (row) => row.at],
        ...resources.map((each) => [each, (row) => number(row.balance[each]), 'number']),
        ...resources.map((each) => [`${each}, turnover`, (row) => number(row.turnover[each]), 'number']),
      ],
      [...data.balances].reverse(),
    ),
  ];
}
