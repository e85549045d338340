import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http'
import { createServer as createPlainServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import {
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  joined,
  startCorral,
  until
} from '../../../support/corral.ts'
import { listen } from '../../../support/listen.ts'
import { localhostCertificate } from '../../../support/localhost-certificate.ts'
import { makeCertificate, whyNoCertificates } from '../../../support/make-certificate.ts'
import { getNodes, type NodeCorral, startGateway, untilStates } from './support.ts'

/* Nodes with unusual addresses, and nodes that answer wrongly: real nodes behind a proxy that spoils their answers. */

const chat = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }

/** Replaces the node's answer to the gateway. */
type Fault = (reply: ServerResponse, answer: Buffer, from: IncomingMessage) => void

/** A node behind a proxy. Only the route that gateways ask is spoiled. */
async function spoil(node: Corral) {
  const state: { fault: Fault | undefined; asked: number } = { fault: undefined, asked: 0 }
  const server = createServer((incoming, reply) => {
    const chunks: Buffer[] = []
    incoming.on('data', chunk => chunks.push(chunk))
    incoming.on('end', () => {
      const isAsk = incoming.url === '/api/cluster/ask'
      if (isAsk) state.asked++
      const { host, ...headers } = incoming.headers
      const onward = request(node.url + incoming.url, { method: incoming.method!, headers }, from => {
        const fault = isAsk ? state.fault : undefined
        if (!fault) {
          reply.writeHead(from.statusCode!, from.headers)
          from.on('data', chunk => reply.write(chunk))
          from.on('end', () => {
            reply.addTrailers(from.trailers as Record<string, string>)
            reply.end()
          })
          return
        }
        const answer: Buffer[] = []
        from.on('data', chunk => answer.push(chunk))
        from.on('end', () => fault(reply, Buffer.concat(answer), from))
      })
      onward.on('error', () => reply.destroy())
      reply.on('close', () => onward.destroy())
      onward.end(Buffer.concat(chunks))
    })
  })
  return { state, url: `http://127.0.0.1:${await listen(t, server)}` }
}

const eventStream = { 'content-type': 'text/event-stream' }
const FAULTS: Record<string, Fault> = {
  'HTML with status 200': reply => reply.writeHead(200, { 'content-type': 'text/html' }).end('<p>Hello</p>'),
  'HTML with status 502': reply => reply.writeHead(502, { 'content-type': 'text/html' }).end('<p>Bad gateway</p>'),
  'truncated JSON': (reply, answer, { headers }) => {
    reply.writeHead(200, { 'content-type': headers['content-type']! }).end(answer.subarray(0, 40))
  },
  'nothing at all': (reply, _, { headers }) => {
    reply.writeHead(200, { 'content-type': headers['content-type']! }).end()
  },
  'an event with only the role, and an end': (reply, answer) => {
    reply.writeHead(200, eventStream).end(answer.subarray(0, answer.indexOf('\n\n') + 2))
  },
  'an event with only the role, and a closed connection': (reply, answer) => {
    const events = answer.includes('data: ')
    reply.writeHead(200, events ? eventStream : { 'content-type': 'application/x-ndjson' })
    reply.write(events ? answer.subarray(0, answer.indexOf('\n\n') + 2) : '[{}]\n', () => reply.destroy())
  },
  'a request that could not be read': reply => {
    const refusal = { error: 'The request was not complete in time. Send it again.', code: 'invalid_request' }
    reply.writeHead(408, { 'content-type': 'application/json' }).end(JSON.stringify(refusal))
  },
  'a status that no member sends': reply => reply.writeHead(418).end('{"error": "a teapot"}')
}

t.setTimeout(600_000)

const [node, other] = await Promise.all([startCorral(t), startCorral(t)])
const { state, url } = await spoil(other)

/** Waits until the gateway knows that only the spoiled node has the model in memory, so it is asked first. */
const untilOnlySpoiledHasIt = (gateway: Corral) =>
  until('the gateway knows who has the model in memory', async () =>
    (await getNodes(gateway)).every(
      ({ name, state, loaded, sent }) => state === 'up' && sent === 0 && loaded.length === (name === 'spoiled' ? 1 : 0)
    )
  )

t.test('another node answers a spoiled request, and the faulty node rests', async t => {
  const gateway = await startGateway(t, [
    { name: 'spoiled', url },
    { name: 'good', url: node.url }
  ])
  const member = async () => (await getNodes(gateway)).find(({ name }) => name === 'spoiled')
  const ask = {
    bytes: async () => joined((await gateway.events('/v1/chat/completions', { ...chat, stream: true })).slice(0, -1)),
    lines: async () =>
      joined(await gateway.events('/api/chat', { model: DEMO, messages: chat.messages, options: { temperature: 0 } })),
    once: async () => (await gateway.json('/tokenize', { model: DEMO, content: 'Paris' })).body.tokens?.length > 0
  }
  for (const [what, fault] of Object.entries(FAULTS)) {
    for (const [form, answerOf] of Object.entries(ask)) {
      state.fault = undefined
      await untilStates(gateway, { spoiled: 'up', good: 'up' })
      await node.json('/api/stop', { model: DEMO })
      await other.json('/api/load', { model: DEMO })
      await untilOnlySpoiledHasIt(gateway)
      // A correct answer, so that its next rest is short.
      t.ok(await ask.once())
      await node.json('/api/stop', { model: DEMO })
      await untilOnlySpoiledHasIt(gateway)
      state.fault = fault
      state.asked = 0
      const answer = await answerOf()
      t.equal(answer, form === 'once' ? true : CAPITAL_ANSWER, `${what}, ${form}`)
      t.ok(state.asked > 0, 'it was asked')
      if (!what.includes('closed connection')) {
        const { state: now, reason } = await member()
        t.ok(now === 'up' || (now === 'away' && reason.length > 10), `${what}: ${reason}`)
      }
    }
  }
  state.fault = FAULTS['HTML with status 502']
  await untilStates(gateway, { spoiled: 'up' })
  await other.json('/api/load', { model: DEMO })
  await node.json('/api/stop', { model: DEMO })
  await until('it is noticed', async () => {
    await ask.bytes()
    return (await member()).state === 'away'
  })
  t.match((await member()).reason, /status 502/)
  state.fault = undefined
  await untilStates(gateway, { spoiled: 'up' })
})

/** Sends an answer up to its last token, one delta per line, and closes the connection. */
const cutBehindLastToken: Fault = (reply, answer, { headers }) => {
  const type = headers['content-type']!
  // Requests that count tokens are answered as usual.
  if (type.includes('application/json')) return reply.writeHead(200, { 'content-type': type }).end(answer)
  const text = answer.toString()
  const pieces = type.includes('event-stream')
    ? text.split(/(?<=\n\n)/)
    : text
        .split('\n')
        .flatMap(line => (line === '' ? [] : JSON.parse(line).map((d: object) => `${JSON.stringify([d])}\n`)))
  const end = pieces.findIndex(piece => /"finish(_reason)?":"/.test(piece))
  reply.writeHead(200, { 'content-type': type })
  reply.write(pieces.slice(0, end).join(''), () => reply.destroy())
}

t.test('the gateway completes an answer that is cut off after its last token', async t => {
  const more = { max_tokens: 4, temperature: 0, stream: true }
  const counted = { ...more, stream_options: { include_usage: true } }
  const options = { num_predict: 4, temperature: 0 }
  const surfaces: [path: string, body: object][] = [
    ['/v1/chat/completions', { ...chat, ...counted }],
    ['/v1/chat/completions', { ...chat, ...more }],
    ['/v1/completions', { model: DEMO, prompt: 'What is the', ...counted }],
    ['/v1/completions', { model: DEMO, prompt: 'What is the', ...more }],
    ['/api/chat', { model: DEMO, messages: chat.messages, options }],
    ['/v1/messages', { ...chat, ...more }]
  ]
  const OWN =
    /^(id|created|created_at|system_fingerprint|timings|.*_duration|tokens_per_second|cached_tokens|input_tokens|cache_read_input_tokens)$/
  /** The client's view of an answer, without names, times and cache counts. */
  const seen = (events: any[], isCounted: boolean) =>
    events
      .filter(({ choices }) => isCounted || choices?.length !== 0)
      .map(event =>
        JSON.parse(
          JSON.stringify(event, (name, value) =>
            OWN.test(name) || (!isCounted && name === 'usage') ? undefined : value
          )
        )
      )
  for (const others of [[{ name: 'good', url: node.url }], []]) {
    const gateway = await startGateway(t, [{ name: 'spoiled', url }, ...others])
    for (const [path, body] of surfaces) {
      // Alone, no other node can count. llama-server counts text completions even if the client does not want that.
      const isCounted = others.length > 0 && (path !== '/v1/completions' || 'stream_options' in body)
      const whole = seen(await node.events(path, body), isCounted)
      state.fault = undefined
      await other.json('/api/load', { model: DEMO })
      await node.json('/api/stop', { model: DEMO })
      await untilOnlySpoiledHasIt(gateway)
      state.fault = cutBehindLastToken
      state.asked = 0
      const events = await gateway.events(path, body, { headers: { 'x-corral-resumable': 'true' } })
      t.ok(state.asked > 0, 'it was asked')
      t.same(seen(events, isCounted), whole, `${path}, ${others.length} others`)
    }
  }
})

t.test('servers that are not nodes are reported with the reason', async t => {
  const silent = createPlainServer(socket => socket.on('error', () => {}).write('220 mail.example.org ESMTP\r\n'))
  const beats = createServer((_, reply) => {
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    const timer = setInterval(() => reply.write(': here\n\n'), 50)
    reply.on('close', () => clearInterval(timer))
  })
  const early = createServer((_, reply) => {
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    const value = { version: '0.0.1', started_at: '2020-01-01T00:00:00.000Z', draining: false }
    const records = [{ topic: 'server', key: 'server', value }]
    reply.write(`event: snapshot\ndata: ${JSON.stringify({ records })}\n\n`)
  })
  const members: NodeCorral[] = [{ name: 'good', url: node.url }]
  for (const [name, server] of Object.entries({ silent, beats, early })) {
    members.push({ name, url: `http://127.0.0.1:${await listen(t, server)}` })
  }
  const gateway = await startGateway(t, members)
  await until('all were checked', async () =>
    (await getNodes(gateway)).every(({ state, reason }) => state === 'up' || !/not been reached/.test(reason))
  )
  const reasons = Object.fromEntries((await getNodes(gateway)).map(({ name, reason }) => [name, reason]))
  t.match(reasons.silent, /does not speak HTTP/)
  t.match(reasons.beats, /sent nothing for/)
  t.match(reasons.early, /upgrade it/i)
  t.equal((await gateway.json('/v1/chat/completions', chat)).body.choices[0].message.content, CAPITAL_ANSWER)
})

t.test('members are reached over HTTPS with a private authority and by a DNS name', async t => {
  const missing = whyNoCertificates()
  if (missing) return t.comment(`skipped: ${missing}`)
  const { cert, key } = makeCertificate(30)
  const folder = t.testdir({ 'cert.pem': cert, 'key.pem': key, 'other.pem': localhostCertificate.cert })
  const config = `tls: { certificate: ${folder}/cert.pem, key: ${folder}/key.pem }\n`
  const node = await startCorral(t, { config, ca: cert })
  t.match(node.url, /^https:/)
  const port = new URL(node.url).port
  const trusting = (ca: string) => startGateway(t, [{ name: 'node-1', url: node.url }], { cluster: `  ca: "${ca}"\n` })

  const gateway = await trusting(join(folder, 'cert.pem'))
  await untilStates(gateway, { 'node-1': 'up' })
  t.equal((await gateway.json('/v1/chat/completions', chat)).body.choices[0].message.content, CAPITAL_ANSWER)

  const plain = await startGateway(t, [{ name: 'node-1', url: node.url.replace('https:', 'http:') }])
  await until('it is explained', async () => /begins with https/.test((await getNodes(plain))[0].reason))

  for (const ca of ['', join(folder, 'other.pem')]) {
    const wrong = await trusting(ca)
    const [member] = await until('it was checked', async () => {
      const members = await getNodes(wrong)
      return /certificate/.test(members[0].reason) ? members : undefined
    })
    t.match(member, { state: 'away', reason: /certificate is not trusted here.*cluster\.ca/ })
  }

  const dns = `cluster:\n  ca: ${folder}/cert.pem\n  dns: { name: localhost, port: ${port}, tls: true, interval: 1s }\n`
  const named = await startCorral(t, { config: `${dns}storage:\n  demo_model: false\n` })
  await untilStates(named, { [`127.0.0.1:${port}`]: 'up' })
  t.equal((await named.json('/v1/chat/completions', chat)).body.choices[0].message.content, CAPITAL_ANSWER)
  t.match((await named.json('/api/cluster')).body.sources, [{ name: 'dns', members: Number }])

  const unknown = `cluster:\n  dns: { name: none.invalid, interval: 1s }\nstorage:\n  demo_model: false\n`
  const lost = await startCorral(t, { config: unknown })
  const fault = await until('it is reported', async () => (await lost.json('/api/cluster')).body.sources[0].fault)
  t.match(fault, /"none\.invalid" has no members/)
})
