import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { asker, converse, shareOf } from '../plugins/machines/cluster/conversations.ts'
import { gatewayConfig, startGateway } from '../plugins/machines/cluster/support.ts'
import { whyNoNetwork, withNetwork } from '../plugins/machines/link/network.ts'
import { type Passage, startBadNetwork, type Weather } from '../support/bad-network.ts'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { randomNumbers } from '../support/random.ts'
import { record, within } from './support.ts'

/*
 * Faults of nodes, gateways and networks under load. Each answer must end, whole or with an error code, and afterwards
 * the cluster must work as before without a restart of anything that did not die.
 */

const STREAMS = Number(process.env.CORRAL_LONG_STREAMS ?? 64)
const ONLY = new RegExp(process.env.CORRAL_LONG_TRIAL ?? '')
const SEED = Number(process.env.CORRAL_LONG_SEED ?? Date.now() % 1e6)
const SLOTS = 4
/** Answers that have not ended by then hang: no trial waits that long on purpose. */
const LIMIT_MS = 240_000
/** How answers may end. */
const ENDS = /^(whole|engine_crashed|engine_unreachable)$/
const random = randomNumbers(SEED)
const nodeOptions = { config: `defaults:\n  num_parallel: ${SLOTS}\n  num_ctx: 8192\n` }

t.setTimeout(3_600_000)
t.comment(`CORRAL_LONG_SEED=${SEED}`)

const messages = [CAPITAL_QUESTION]
const limits = { temperature: 0, ignore_eos: true, max_tokens: 150 }
const counted = { ...limits, stream: true, stream_options: { include_usage: true } }
interface Request {
  path: string
  body: object
  headers?: Record<string, string>
  /** Tokens of the whole answer. */
  tokens?: number
}
const REQUESTS: Request[] = [
  { path: '/v1/chat/completions', body: { messages, ...counted } },
  { path: '/v1/chat/completions', body: { messages, ...counted }, headers: { 'x-corral-resumable': 'true' } },
  { path: '/v1/completions', body: { prompt: 'Count to 30.', ...counted } },
  { path: '/api/chat', body: { messages, options: limits } },
  { path: '/v1/messages', body: { messages, ...limits, stream: true } },
  { path: '/v1/chat/completions', body: { messages, ...limits } },
  { path: '/v1/embeddings', body: { input: 'A text.' } }
]

interface Cluster {
  front: Corral
  nodes: Corral[]
  /** Requests reach the gateway by its socket, since it is in another network. */
  local: boolean
}

const TOKENS = /"(?:completion_tokens|output_tokens|eval_count)":(\d+)/g
const tokensIn = (text: string) => Number([...text.matchAll(TOKENS)].at(-1)?.[1] ?? 0)

/** Asks, and returns how the answer ended: `whole`, the code of its error, or what is wrong with it. */
async function ask({ front, local }: Cluster, { path, body, headers = {}, tokens }: Request, begun = () => {}) {
  let text = ''
  try {
    const reply = await front.send(path, { model: DEMO, ...body }, { headers, local })
    for await (const chunk of reply.body!) {
      text += Buffer.from(chunk as Uint8Array).toString()
      if (/"(content|text)":"[^"]/.test(text)) begun()
    }
  } catch (error) {
    return `cut: ${(error as Error).message}`
  }
  const code = /"(?:code|errorCode)":"([a-z_]+)"/.exec(text) ?? /"error":\{"type":"([a-z_]+)"/.exec(text)
  if (code) return code[1]!
  return tokensIn(text) === tokens ? 'whole' : `not whole: ${text.slice(-300)}`
}

interface Trial {
  /** @returns heals it */
  harm(cluster: Cluster): unknown
  /** Milliseconds after which it is healed. Otherwise that is done when all answers have ended. */
  heals?: number
  /** How answers may end, if not as usual. */
  ends?: RegExp
}

/** The gateway's view of the nodes, and the nodes' own, if something is not as it should be without requests. */
async function getBusy({ front, nodes, local }: Cluster): Promise<string> {
  const seen: any[] = (await front.json('/api/cluster', undefined, { local })).body.members
  const busy = seen.filter(({ state, running, queued, sent }) => state !== 'up' || running + queued + sent > 0)
  const own = await Promise.all(
    nodes.map(async node => {
      const { models, loading } = (await node.json('/api/ps', undefined, { local })).body
      return [...models, ...loading].filter(({ running = 0, queued = 0 }: any) => running + queued > 0)
    })
  )
  const shown = busy.map(({ name, state, reason, running, queued, sent }) => ({
    ...{ name, state, reason, running, queued, sent }
  }))
  return [...shown, ...own.flat()].map(each => JSON.stringify(each)).join(', ')
}

/** Waits until all nodes are up. */
const untilUp = ({ front, local }: Cluster) =>
  until('all nodes are up', async () => {
    const { members } = (await front.json('/api/cluster', undefined, { local })).body
    return members.every(({ state }: any) => state === 'up')
  })

/** Waits until nothing is left of a trial. @returns milliseconds */
async function untilNormal(cluster: Cluster): Promise<number> {
  const start = Date.now()
  let busy = ''
  const look = async () => {
    busy = await getBusy(cluster)
    return busy === ''
  }
  await until('the cluster is idle', look, 90_000).catch(() => {
    throw new Error(`The cluster is not as before: ${busy}`)
  })
  return Date.now() - start
}

async function run(t: Test, cluster: Cluster, name: string, { harm, heals, ends = ENDS }: Trial): Promise<void> {
  const { local } = cluster
  await Promise.all(cluster.nodes.map(node => node.json('/api/load', { model: DEMO }, { local })))
  await untilNormal(cluster)
  const hasBegun = new Set<number>()
  const answers = Array.from({ length: STREAMS }, (_, index) =>
    ask(cluster, REQUESTS[index % REQUESTS.length]!, () => hasBegun.add(index))
  )
  await until('some have begun', () => hasBegun.size > 8)
  const start = Date.now()
  const heal = (await harm(cluster)) as (() => unknown) | undefined
  // Enough that new connections are needed.
  const more = Array.from({ length: 5 }, () => REQUESTS).flat()
  const late = sleep(2000).then(() => Promise.all(more.map(request => ask(cluster, request))))
  const healed = heals === undefined ? undefined : sleep(heals).then(heal)
  let took = 0
  const all = Promise.all([Promise.all(answers), late]).then(results => {
    took = Date.now() - start
    return results.flat()
  })
  const results = await within(LIMIT_MS, 'an answer', all).catch(async error => {
    throw new Error(`${error.message}: ${await getBusy(cluster)}\n${cluster.nodes[0]!.log().slice(-2000)}`)
  })
  await (healed ?? heal?.())
  const counts: Record<string, number> = {}
  for (const end of results) {
    const name = end.replace(/:.*/s, '')
    counts[name] = (counts[name] ?? 0) + 1
    if (!ends.test(end)) t.fail(end)
  }
  const normal = await untilNormal(cluster)
  t.comment(`${JSON.stringify(counts)} after ${took} ms, as before ${normal} ms later`)
  const again = Array.from({ length: cluster.nodes.length * SLOTS }, () => ask(cluster, REQUESTS[0]!))
  t.same([...new Set(await within(60_000, 'an answer afterwards', Promise.all(again)))], ['whole'])
  await untilNormal(cluster)
  const figures = { ...counts, 'until the last answer ended': `${took} ms`, 'until all was as before': `${normal} ms` }
  record(t, `Cluster, ${name}`, figures)
}

async function readTokens(node: Corral, local: boolean): Promise<void> {
  for (const request of REQUESTS) {
    const reply = await node.send(request.path, { model: DEMO, ...request.body }, { local })
    request.tokens = tokensIn(await reply.text())
  }
}

/** A node instead of a killed one. */
const startAgain = ({ home, url }: Corral) =>
  startCorral(t, { ...nodeOptions, home, flags: ['--port', new URL(url).port] })

const stopped = (pids: number[]) => {
  for (const pid of pids) process.kill(pid, 'SIGSTOP')
  return () => pids.forEach(pid => void process.kill(pid, 'SIGCONT'))
}

t.test('on one machine', async t => {
  const nodes = await Promise.all([1, 2, 3].map(() => startCorral(t, nodeOptions)))
  const networks = await Promise.all(nodes.map(({ url }) => startBadNetwork(t, Number(new URL(url).port))))
  const members = networks.map(({ url }, index) => ({ name: `node-${index + 1}`, url }))
  const network = networks[0]!
  const cluster: Cluster = {
    front: await startGateway(t, members),
    nodes,
    local: false
  }
  await readTokens(nodes[0]!, false)
  const weather = (now: Weather) => () => {
    network.set(now)
    return () => network.set({})
  }
  const some = (share: number, what: Partial<Passage> | ((passage: Passage) => void)) => () =>
    network.each(passage => {
      if (random() >= share) return
      if (typeof what === 'function') what(passage)
      else Object.assign(passage, structuredClone(what))
    })

  const trials: Record<string, Trial> = {
    'an engine is killed': { harm: () => nodes[0]!.enginePids().forEach(pid => void process.kill(pid, 'SIGKILL')) },
    'an engine stops for a minute': { harm: () => stopped(nodes[0]!.enginePids()), heals: 60_000 },
    'a node stops for a minute': { harm: () => stopped([nodes[0]!.process.pid!]), heals: 60_000 },
    'a node is killed and started again': {
      async harm() {
        await nodes[0]!.end('SIGKILL')
        nodes[0] = await startAgain(nodes[0]!)
      }
    },
    'the gateway stops for a minute': {
      harm: () => stopped([cluster.front.process.pid!]),
      heals: 60_000,
      // Refused with status 408: requests that it had not begun to read.
      ends: /^(whole|invalid_request)$/
    },
    'the gateway is killed and started again': {
      async harm() {
        await cluster.front.end('SIGKILL')
        cluster.front = await startGateway(t, members)
      },
      ends: /^(whole|cut|not whole)/
    },
    'the model is stopped at the gateway': {
      harm: ({ front }) => front.json('/api/stop', { model: DEMO }).then(() => undefined),
      ends: /^(whole|model_stopped|engine_crashed)$/
    },
    'a slow network': { harm: weather({ delay: 400 }), heals: 30_000, ends: /^whole$/ },
    'a throttled network': { harm: weather({ rate: 3000 }), heals: 30_000, ends: /^whole$/ },
    'a node that returns on a slow line': {
      async harm() {
        network.set({ rate: 600 })
        network.each(({ client }) => void client.resetAndDestroy())
        await sleep(1000)
        await untilUp(cluster)
        return () => network.set({})
      }
    },
    'a network without bytes': { harm: weather({ lost: ['client', 'server'] }), heals: 30_000 },
    'a network without answers': { harm: weather({ lost: ['client'] }), heals: 30_000 },
    'a network without requests': { harm: weather({ lost: ['server'] }), heals: 30_000 },
    'an address that answers nobody': {
      harm() {
        network.set({ isClosed: true })
        network.each(({ client }) => void client.resetAndDestroy())
        return () => network.set({})
      },
      heals: 20_000
    },
    'connections that lose all answers': { harm: some(0.5, { lost: 'client' }) },
    'connections that lose all requests': { harm: some(0.5, { lost: 'server' }) },
    'connections that lose bytes of answers': { harm: some(0.7, { dropped: { client: 700, server: 0 } }) },
    'connections that lose bytes of requests': { harm: some(0.7, { dropped: { client: 0, server: 50 } }) },
    'connections closed by the node': { harm: some(0.7, ({ client }) => void client.end()) },
    'connections closed by the gateway': { harm: some(0.7, ({ server }) => void server.end()) },
    'connections that are reset': {
      harm: some(0.7, ({ client, server }) => [client, server].forEach(each => void each.resetAndDestroy()))
    }
  }
  for (const [name, trial] of Object.entries(trials)) {
    if (ONLY.test(name)) await t.test(name, t => run(t, cluster, name, trial))
  }
})

t.test('in networks of their own', { skip: whyNoNetwork() ?? false }, async t => {
  const names = ['front', 'a', 'b', 'c']
  await withNetwork(t, names, async network => {
    const start = (name: string) =>
      startCorral(t, {
        ...nodeOptions,
        launcher: network.launcher(name),
        flags: ['--host', network.address(name)],
        env: { CORRAL_API_KEYS: 'secret' }
      })
    const nodes = await Promise.all(names.slice(1).map(start))
    const members = nodes.map(({ url }, index) => ({ name: `node-${index + 1}`, url, key: 'secret' }))
    const cluster: Cluster = {
      front: await startGateway(t, members, { launcher: network.launcher('front') }),
      nodes,
      local: true
    }
    await untilNormal(cluster)
    await readTokens(nodes[0]!, true)
    const cut =
      (...ways: [from: string, to: string][]) =>
      () => {
        for (const [from, to] of ways) network.cut(from, to, true)
        return () => {
          for (const [from, to] of ways) network.cut(from, to, false)
        }
      }
    const trials: Record<string, Trial> = {
      'a partition': { harm: cut(['front', 'a'], ['a', 'front']) },
      'a brief partition': { harm: cut(['front', 'a'], ['a', 'front']), heals: 4000 },
      'packets to a node are lost': { harm: cut(['front', 'a']) },
      'packets of a node are lost': { harm: cut(['a', 'front']) },
      'two of three nodes are cut off': { harm: cut(['front', 'a'], ['b', 'front']) },
      'clients leave during a partition': {
        async harm({ front }) {
          const leaving = new AbortController()
          const endless = { model: DEMO, messages, ...limits, max_tokens: 100_000, stream: true }
          for (let count = 0; count < 2 * SLOTS; count++) {
            front.send('/v1/chat/completions', endless, { local: true, signal: leaving.signal }).catch(() => {})
          }
          await sleep(2000)
          const heal = cut(['front', 'a'], ['a', 'front'])()
          leaving.abort()
          return heal
        },
        heals: 30_000
      },
      'a node that is no longer listed is cut off': {
        async harm({ front }) {
          const list = (listed: typeof members) =>
            front.reload(gatewayConfig(listed, 'storage:\n  demo_model: false\n'))
          await list(members.slice(1))
          const heal = cut(['front', 'a'], ['a', 'front'])()
          return async () => {
            heal()
            await list(members)
          }
        }
      }
    }
    for (const [name, trial] of Object.entries(trials)) {
      if (ONLY.test(name)) await t.test(name, t => run(t, cluster, name, trial))
    }
  })
})

t.test('30 conversations of 8 turns over nodes with fewer slots', { skip: !ONLY.test('conversations') }, async t => {
  const talks = { count: 30, turns: 8, lanes: 6 }
  const withSlots = (slots: number) => startCorral(t, { config: `defaults:\n  num_parallel: ${slots}\n` })
  const [alone, ...nodes] = await Promise.all([6, 2, 2, 2].map(withSlots))
  const members = nodes.map(({ url }, index) => ({ name: `node-${index + 1}`, url }))
  const cluster = { front: await startGateway(t, members), nodes, local: false }
  await Promise.all([alone!, ...nodes].map(node => node.json('/api/load', { model: DEMO })))
  await untilNormal(cluster)
  const single = shareOf(await converse('one', asker(alone!), talks))
  const shared = shareOf(await converse('all', asker(cluster.front), talks))
  t.comment(`hits: one node with 6 slots ${single.toFixed(3)}, three with 2 ${shared.toFixed(3)}`)
  t.ok(shared >= 0.9 * single, `${shared} of ${single}`)
  await untilNormal(cluster)
  const percent = (share: number) => `${(100 * share).toFixed(1)} %`
  record(t, 'Cluster, 30 conversations of 8 turns', {
    'prompt tokens found by one node with 6 slots': percent(single),
    'by three nodes with 2 slots each': percent(shared)
  })
})
