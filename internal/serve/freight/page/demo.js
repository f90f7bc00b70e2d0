// The freight demo, and an example of how a page uses Spillway: a live list, a form, many small writes, a popup.
// All paths are relative, so that the page also works behind a proxy that serves it below another path.
'use strict'

const $ = id => document.getElementById(id)

// make returns an element. Texts from the database only ever become text, never HTML.
function make (name, text, attributes = {}) {
  const element = document.createElement(name)
  if (text !== undefined) element.textContent = text
  for (const key in attributes) element.setAttribute(key, attributes[key])
  return element
}

// Requests.

const times = {} // of the last answers by method and path, in milliseconds

// timed sends a request and notes how long the answer took. A failure of the network is an answer with the status 0.
async function timed (path, request) {
  const started = performance.now()
  let response
  try {
    response = await fetch(path, request)
  } catch {
    return { ok: false, status: 0, json: async () => ({ detail: 'no answer' }) }
  }
  const list = times[`${request?.method ?? 'GET'} /${path.split('?')[0]}`] ??= []
  list.push(performance.now() - started)
  if (list.length > 100) list.shift()
  return response
}

function post (path, value) {
  return timed(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(value) })
}

// problem returns why a request failed: Spillway answers mistakes with application/problem+json.
async function problem (response) {
  const body = await response.json().catch(() => ({}))
  const first = body.refused?.[0]
  if (first) return `${first.field}: ${first.reason}`
  return body.detail || body.title || `status ${response.status}`
}

// A live list: the feed sends its first page whenever it changes. An EventSource connects again after a lost
// connection by itself, but not after a status such as 503.
function listen (path, state, show) {
  const source = new EventSource(path)
  source.onopen = () => { state.textContent = 'live' }
  source.onmessage = event => show(JSON.parse(event.data))
  source.onerror = () => {
    state.textContent = 'connecting again'
    if (source.readyState === EventSource.CLOSED) setTimeout(() => listen(path, state, show), 1000)
  }
}

// Orders.

const known = new Set() // ids that were shown
const placed = new Map() // goods of orders that this page has placed, and when; until they are in the list

function showOrders (page) {
  const first = known.size === 0
  const rows = page.data.map(order => {
    const row = make('tr')
    for (const value of [order.id, order.goods_name, order.nickname, local(order.createtime)]) row.append(make('td', value))
    if (!first && !known.has(order.id)) {
      row.className = 'new'
      seen(order.goods_name)
    }
    return row
  })
  for (const order of page.data) known.add(order.id)
  $('orders').replaceChildren(...rows)
}

function local (time) {
  const date = new Date(time.replace(' ', 'T') + (/(Z|[+-]\d\d:?\d\d)$/.test(time) ? '' : 'Z'))
  return isNaN(date) ? time : date.toLocaleString([], { dateStyle: 'short', timeStyle: 'medium' })
}

// seen says after how long an order of this page is in the list.
function seen (goods) {
  if (!placed.has(goods)) return
  const took = performance.now() - placed.get(goods)
  placed.delete(goods)
  $('visible').textContent = `Your last order was in the list ${took.toFixed(0)} ms after you placed it; the list is read every 100 ms.`
}

$('order').addEventListener('submit', async event => {
  event.preventDefault()
  const form = new FormData(event.target)
  const order = { users_id: Number(form.get('user')), goods_name: form.get('goods') }
  placed.set(order.goods_name, performance.now())
  const response = await post('orders', order)
  const answer = response.ok ? await response.json() : null
  if (!answer) placed.delete(order.goods_name)
  $('order-result').textContent = answer ? `stored (${answer.ack})` : await problem(response)
})

// Trucks: each second some of them report where they are, in a few requests with many records.

const cities = { // degrees north and east
  Beijing: [39.9, 116.4], Shanghai: [31.2, 121.5], Guangzhou: [23.1, 113.3], Chengdu: [30.7, 104.1], Wuhan: [30.6, 114.3],
  "Xi'an": [34.3, 108.9], Zhengzhou: [34.7, 113.6], Nanning: [22.8, 108.3], Kunming: [25, 102.7]
}
const names = Object.keys(cities)
const any = list => list[Math.floor(Math.random() * list.length)]
const device = 1000 + Math.floor(Math.random() * 1e6) // of the first truck of this page
const trucks = Array.from({ length: 25 }, (_, i) => ({ id: device + i, from: any(names), to: any(names), way: Math.random() }))
const ticks = 5 // requests per second, at most

function move (truck, seconds) {
  truck.way += seconds / 20
  if (truck.way >= 1) Object.assign(truck, { from: truck.to, to: any(names), way: 0 })
  const [a, b] = [cities[truck.from], cities[truck.to]]
  const at = i => Number((a[i] + (b[i] - a[i]) * truck.way).toFixed(4))
  return { device_id: truck.id, latitude: at(0), longitude: at(1), speed: truck.from === truck.to ? 0 : 62.5 }
}

let due = 0 // positions that are due
let next = 0 // truck
let reporting = false

async function report () {
  due = Math.min(due + Number($('rate').value) / ticks, 200)
  if (reporting || due < 1) return
  const count = Math.floor(due)
  const positions = []
  for (; positions.length < count; next++) positions.push(move(trucks[next % trucks.length], trucks.length / Number($('rate').value || 1)))
  due -= count
  reporting = true
  const response = await post('positions', positions)
  reporting = false
  $('trucks-state').textContent = response.ok ? 'live' : await problem(response)
}

const dots = new Map() // by device

function draw (name, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name)
  for (const key in attributes) element.setAttribute(key, attributes[key])
  $('map').append(element)
  return element
}

// showTrucks draws all trucks that the list of positions has, also those of other pages.
function showTrucks (page) {
  for (const p of page.data.toReversed()) { // the newest last
    if (p.latitude === null || p.longitude === null) continue
    const dot = dots.get(p.device_id) ?? draw('circle', { r: 0.25 })
    dots.delete(p.device_id)
    dots.set(p.device_id, dot) // last, as it was heard of last
    dot.setAttribute('cx', p.longitude)
    dot.setAttribute('cy', -p.latitude)
  }
  for (const [id, dot] of dots) {
    if (dots.size <= 100) break
    dot.remove()
    dots.delete(id)
  }
}

for (const name of names) {
  const [north, east] = cities[name]
  draw('circle', { r: 0.15, cx: east, cy: -north, class: 'city' })
  draw('text', { x: east + 0.3, y: -north }).textContent = name
}
$('rate').addEventListener('input', () => { $('rate-shown').textContent = $('rate').value })

// Popup: asking records the show; each answer goes back with the token of the show.

function say (text) { $('popup').replaceChildren(make('p', text)) }

$('ask').addEventListener('submit', async event => {
  event.preventDefault()
  const form = new FormData(event.target)
  const query = new URLSearchParams({ user: form.get('user'), app_version: form.get('version') })
  if (form.has('later')) query.set('clock_offset', '25h')
  const response = await timed('popup?' + query)
  if (response.status === 204) return say(`No popup: ${response.headers.get('Spillway-Reason')}.`)
  if (!response.ok) return say(await problem(response))
  const { campaign, payload, show } = await response.json()
  const card = make('div', undefined, { class: 'card' })
  card.append(make('p', payload.title))
  for (const [answer, text] of [['click', payload.button], ['dismiss', 'Not now']]) {
    const button = make('button', text, { type: 'button' })
    button.addEventListener('click', async () => {
      const done = await post('popup/' + answer + (form.has('later') ? '?clock_offset=25h' : ''), { show })
      say(done.ok ? `Recorded: ${answer} on campaign ${campaign}.` : await problem(done))
    })
    card.append(button, ' ')
  }
  $('popup').replaceChildren(card)
})

// Costs: the counters of the process, each second.

let before = null

async function costs () {
  const response = await fetch('demo/costs').catch(() => null)
  if (!response?.ok) return
  const now = await response.json()
  now.at = performance.now()
  if (now.console) {
    $('console').href = now.console
    $('console').hidden = false
  }
  if (before) $('costs').replaceChildren(...now.parts.map(part => costRow(part, before.parts.find(p => p.name === part.name), now.at - before.at)))
  before = now
}

function costRow (part, old, milliseconds) {
  const rate = key => part[key] === undefined || !old ? '' : ((part[key] - old[key]) * 1000 / milliseconds).toFixed(0)
  const list = (times[part.path] ?? []).toSorted((a, b) => a - b)
  const row = make('tr')
  row.append(make('th', part.name, { scope: 'row' }))
  for (const text of [rate('answers'), rate('statements'), part.listeners ?? '',
    part.age === undefined ? '' : `${(part.age * 1000).toFixed(0)} ms`, list.length ? `${list[list.length >> 1].toFixed(1)} ms` : '']) {
    row.append(make('td', text))
  }
  return row
}

listen('goodslist', $('orders-state'), showOrders)
listen('positions', $('trucks-state'), showTrucks)
setInterval(report, 1000 / ticks)
setInterval(costs, 1000)
costs()
